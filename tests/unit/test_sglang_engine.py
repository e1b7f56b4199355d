"""SGLang's offline engine around a stub that speaks its API: answers as they finish, every way to end badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from sglang_jobs import STUB, Tokenizer, make_job, requests

from llmsys_exp.errors import UserError
from llmsys_exp.workers.engines.base import EngineError
from llmsys_exp.workers.engines.sglang_engine import SglangEngine
from llmsys_exp.workers.generation import Sampling

DIE, HANG, FULL, ABORTED = 900, 901, 902, 908
SAMPLING = Sampling(max_new_tokens=8, end_ids=(2,))


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STUB))


def left_of(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def wait_until_gone(session: int) -> None:
    until = time.monotonic() + 10
    while left_of(session) and time.monotonic() < until:
        time.sleep(0.05)
    assert left_of(session) == []


@pytest.fixture
def engine(tmp_path):
    engine = SglangEngine(make_job(tmp_path))
    yield engine
    engine.stop()
    if engine._host._process is not None:
        wait_until_gone(engine._host.process.pid)


def test_answers_come_as_they_finish_and_nothing_is_left(engine, capsys):
    started = engine.start(engine._job.model_source, Tokenizer())
    assert (started.version, started.context_tokens, started.kv_tokens) == ("0.0.0+stub", 64, 4321)
    assert (started.weights_gib, started.graphs_gib) == (1.5, 0.25)
    assert started.settings["max_running_requests_per_replica"] == 8
    asked = requests((5,) * 6, (6, 7), (8,) * 12, (FULL, 1, 1), (ABORTED,))
    got = list(engine.generate(asked, SAMPLING))
    assert [one.index for one in got if one.index < 3] == [1, 0, 2]
    by_index = {one.index: one for one in got}
    assert (by_index[1].ids, by_index[1].finish, by_index[1].new_tokens) == ((6, 7), "stop", 2)
    assert (by_index[2].ids, by_index[2].finish) == ((8,) * 8, "length")
    assert (by_index[0].cached_tokens, by_index[0].retractions, by_index[0].first_token_s) == (1, 2, 0.5)
    assert 0.05 < by_index[0].latency_s < 10
    assert by_index[3].finish == "abort" and "longer than the model's context" in by_index[3].error
    assert (by_index[4].finish, by_index[4].error) == ("abort", "Out of room")
    assert engine.counters()["retractions"] == 8  # of four requests
    engine.forget()
    assert "did not empty" not in capsys.readouterr().out
    assert (engine.counters()["retractions"], engine.counters()["cache_hit_rate"]) == (0, 0)
    assert len(left_of(engine._host.process.pid)) == 2
    engine.stop()
    assert left_of(engine._host.process.pid) == []
    engine.stop()


def test_a_prompts_own_limit_counts(engine):
    engine.start(engine._job.model_source, Tokenizer())
    (one,) = requests((5, 6, 7, 8))
    (got,) = engine.generate([type(one)(0, one.ids, one.text, 0, max_new_tokens=3)], SAMPLING)
    assert got.ids == (5, 6, 7)


def test_a_host_that_dies_midway_loses_nothing_that_was_reported(engine):
    engine.start(engine._job.model_source, Tokenizer())
    got = []
    with pytest.raises(EngineError, match=r"ended while it answered.*SIGKILL") as failed:
        for one in engine.generate(requests((5,), (DIE, 1, 1, 1, 1, 1, 1, 1, 1, 1), (HANG,)), SAMPLING):
            got.append(one)
    assert [one.index for one in got] == [0]
    assert failed.value.kind == "killed"


def test_a_start_that_fails_is_explained_from_its_log(engine, monkeypatch):
    said = (
        "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.1. Raise above 0.2"
    )
    monkeypatch.setenv("STUB_START", said)
    with pytest.raises(
        EngineError, match=r"Raise inference\.sglang\.mem_fraction_static above 0\.2"
    ) as failed:
        engine.start(engine._job.model_source, Tokenizer())
    assert failed.value.kind == "config"


def test_a_start_that_hangs_is_given_up_and_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_START", "hangs")
    job = make_job(tmp_path)
    job.config.inference.sglang.start_timeout_s = 2.0
    engine = SglangEngine(job)
    with pytest.raises(EngineError, match="did not start within 2 s") as failed:
        engine.start(engine._job.model_source, Tokenizer())
    assert failed.value.kind == "timeout"
    wait_until_gone(engine._host.process.pid)


def test_an_argument_that_sglang_does_not_know_is_refused(tmp_path):
    engine = SglangEngine(make_job(tmp_path, arguments={"schedule_conservativness": 0.5}))
    with pytest.raises(UserError, match="Did you mean schedule_conservativeness"):
        engine.start(engine._job.model_source, Tokenizer())
    wait_until_gone(engine._host.process.pid)


def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    job = make_job(tmp_path)
    job.serving["python"] = "/nowhere/python"
    with pytest.raises(UserError, match=r"inference\.sglang\.python=/nowhere/python"):
        SglangEngine(job).start(job.model_source, Tokenizer())


def test_sglang_ends_when_its_worker_is_killed(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from sglang_jobs import *\n"
        "from llmsys_exp.workers.engines.sglang_engine import SglangEngine\n"
        f"job = make_job(Path({str(tmp_path)!r})); engine = SglangEngine(job)\n"
        "engine.start(job.model_source, Tokenizer())\n"
        "print(engine._host.process.pid, flush=True); time.sleep(60)\n"
    )
    path = os.pathsep.join([str(STUB), os.path.dirname(__file__), os.getcwd()])
    worker = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    session = int(worker.stdout.readline())
    assert len(left_of(session)) == 2
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_until_gone(session)
