"""The real SGLang on this machine's CPU or GPU, where one is installed; one start for everything.

LLMSYS_SGLANG_PYTHON names the interpreter that holds it. On a CPU without a build of its kernels the stand-ins of
tests/sglang_cpu take their place.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tiny_jobs import make_model

from llmsys_exp.config.schema import Config, Dtype
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.engines.base import EngineError, Request
from llmsys_exp.workers.engines.sglang_engine import SglangEngine
from llmsys_exp.workers.generation import Sampling
from llmsys_exp.workers.job import Job, Resolved

STANDINS = Path(__file__).parent.parent / "sglang_cpu"
PYTHON = os.environ.get("LLMSYS_SGLANG_PYTHON") or (
    sys.executable if importlib.util.find_spec("sglang") else None
)
POOL, NEW = 512, 6


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.skipif(PYTHON is None, reason="no SGLang here: name its interpreter in LLMSYS_SGLANG_PYTHON")
def test_a_real_engine_answers_as_transformers_does_and_survives_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STANDINS), os.environ.get("PYTHONPATH", "")]))
    make_model(tmp_path / "model")
    engine, prompts = SglangEngine(_job(tmp_path)), [tuple(range(5, 5 + length)) for length in (20, 9, 14)]
    try:
        started = engine.start(str(tmp_path / "model"), _tokenizer(tmp_path / "model"))
        assert started.kv_tokens == POOL and started.context_tokens == 128
        assert started.weights_gib is not None and started.settings["random_seed"] == 1234
        asked = [*prompts, prompts[0], tuple([7] * 200)]
        requests = [Request(at, ids, "", at) for at, ids in enumerate(asked)]
        sampling = Sampling(max_new_tokens=NEW, ignore_eos=True)
        first = {one.index: one for one in engine.generate(requests[:3], sampling)}
        again = {one.index: one for one in engine.generate(requests[3:], sampling)}
        assert [first[at].ids for at in range(3)] == [_greedy(tmp_path / "model", ids) for ids in prompts]
        assert again[3].ids == first[0].ids and again[3].cached_tokens == len(prompts[0]) - 1
        assert first[0].first_token_s is not None and first[0].first_token_s <= first[0].latency_s
        assert again[4].finish == "abort" and "longer than" in str(again[4].error)
        assert engine.counters()["cached_tokens"] > 0
        _kill_the_scheduler(engine)
        with pytest.raises(EngineError, match=r"SGLang ended: its process scheduler\w* was killed"):
            list(engine.generate(requests[:1], sampling))
    finally:
        engine.stop()
    assert not [one for one in _family(engine) if one.status() != psutil.STATUS_ZOMBIE]


def _job(folder: Path) -> Job:
    config = Config()
    config.training.dtype = Dtype.fp32
    config.inference.sglang.start_timeout_s = 600.0
    settled = {"mem_fraction_static": 0.3, "context_length": 128, "max_running_requests": 4, "kv_cache_dtype": "auto",
               "max_total_tokens": POOL, "schedule_policy": "lpm", "tp_size": 1, "dp_size": 1}  # fmt: skip
    device = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    resolved = Resolved(folder / "model", None, None, None, 1, device)
    return Job(config, {}, resolved, RunPaths(folder), serving={"arguments": settled, "python": PYTHON})


def _tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _greedy(folder: Path, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The likeliest tokens by transformers, step by step."""
    import torch
    from transformers import AutoModelForCausalLM

    model, row = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), list(ids)
    with torch.no_grad():
        for _ in range(NEW):
            row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))
    return tuple(row[len(ids) :])


def _family(engine: SglangEngine) -> list[psutil.Process]:
    session = engine._host.process.pid
    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == session:
                found.append(one)
        except ProcessLookupError:
            continue
    return found


def _kill_the_scheduler(engine: SglangEngine) -> None:
    schedulers = [one for one in _family(engine) if "sched" in " ".join(one.cmdline())]
    assert schedulers
    schedulers[0].send_signal(signal.SIGKILL)
