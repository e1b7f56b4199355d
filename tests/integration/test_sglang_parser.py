"""Our arguments against the argument parser of a real SGLang: its wheel alone, without its GPU packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
VERSION = "0.5.23"
FOLDER = ROOT / ".cache" / f"sglang-{VERSION}-wheel"
SETTLED = {
    "mem_fraction_static": 0.8, "context_length": 4096, "max_running_requests": 256, "chunked_prefill_size": -1,
    "cuda_graph_max_bs": 32, "max_total_tokens": 9000, "kv_cache_dtype": "fp8_e4m3", "quantization": "fp8",
    "tp_size": 2, "dp_size": 2, "attention_backend": "triton", "sampling_backend": "pytorch",
    "schedule_policy": "lpm",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel():
    if sys.version_info < (3, 11):
        pytest.skip(f"SGLang {VERSION} needs Python 3.11")
    if not (FOLDER / "done").is_file():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-compile",
            "--target",
            str(FOLDER),
        ]
        done = subprocess.run(
            [*command, f"sglang=={VERSION}", "msgspec"], check=False, capture_output=True, text=True
        )
        if done.returncode and not os.environ.get("CI"):
            pytest.skip(f"SGLang's wheel cannot be had: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
        (FOLDER / "done").touch()
    return FOLDER


@pytest.mark.engine
def test_every_argument_of_ours_is_one_of_sglangs_own_command_line(wheel, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dual_chunk_attention_config": {"chunk_size": 4}}))
    on_gpu = _engine_arguments(tmp_path, device="cuda", **SETTLED)
    on_cpu = _engine_arguments(tmp_path, device="cpu", **{**SETTLED, "quantization": None})
    server = {**on_gpu, "host": "127.0.0.1", "port": 12345}
    wrong = ({"schedule_conservativness": 1}, {"disable_radix_cache": "yes"}, {"schedule_policy": "lmp"})
    cases = [{"ours": ours, "further": {}} for ours in (on_gpu, on_cpu, server)]
    cases += [{"ours": {"model_path": "m"}, "further": further} for further in wrong]
    cases += [{"ours": on_gpu, "further": {"schedule_conservativeness": 0.3, "disable_radix_cache": True}}]
    told = _parse(wheel, cases)
    assert told["version"] == VERSION
    *good, conservativness, radix, policy, further = told["cases"]
    for case, asked in zip([*good, further], (on_gpu, on_cpu, server, on_gpu), strict=True):
        assert {*case["parsed"]} >= {one for one, value in asked.items() if value is not None} - {
            "cuda_graph_max_bs"
        }
        assert case["parsed"]["cuda_graph_max_bs_decode"] == 32
        same = {name: value for name, value in case["arguments"].items() if name != "lora_paths"}
        assert {name: case["parsed"][name] for name in same} == same
    assert "schedule_conservativeness" in conservativness["refused"]["do"]
    assert "on or off" in radix["refused"]["what"]
    assert "Did you mean lpm" in policy["refused"]["do"]


def _engine_arguments(folder, *, device, **settings):
    from llmsys_exp.config.schema import Config, Dtype
    from llmsys_exp.runs.paths import RunPaths
    from llmsys_exp.workers.engines.sglang_arguments import engine_arguments
    from llmsys_exp.workers.job import Job, Resolved

    config = Config()
    config.training.dtype = Dtype.bf16
    resolved = Resolved(folder, None, None, None, 1, device)
    job = Job(config, {}, resolved, RunPaths(folder), serving={"arguments": settings})
    return {**engine_arguments(job, str(folder)), "skip_tokenizer_init": True}


def _parse(wheel, cases):
    path = os.pathsep.join([str(ROOT), str(wheel)])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "sglang_cpu" / "parse_arguments.py")],
        check=False,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
