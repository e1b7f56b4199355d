"""Servers by HTTP around a stub with SGLang's paths: further tries, time-outs, wrong models, broken replies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from sglang_jobs import STUB, Tokenizer, make_job, requests
from test_sglang_engine import wait_until_gone

from llmsys_exp.config.schema import ServerApi
from llmsys_exp.errors import UserError
from llmsys_exp.workers.engines import http_client
from llmsys_exp.workers.engines.base import EngineError
from llmsys_exp.workers.engines.sglang_server import SglangServerEngine
from llmsys_exp.workers.generation import Sampling

DIE, HANG, FULL, BUSY_ONCE, BUSY, MALFORMED, DROP_ONCE, NOT_JSON, ABORTED = range(900, 909)
SAMPLING = Sampling(max_new_tokens=8, end_ids=(2,))
MODEL = "owner/small-model"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(http_client, "FIRST_WAIT_S", 0.02)
    monkeypatch.setenv("PYTHONPATH", str(STUB))


@pytest.fixture
def serve():
    """Return a function that starts a stub server of a model and tells its URL."""
    running = []

    def start(model=MODEL, **env):
        command = [sys.executable, "-m", "sglang.launch_server", "0", model]
        environment = {**os.environ, "PYTHONPATH": str(STUB), **env}
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        return f"http://127.0.0.1:{int(running[-1].stdout.readline())}"

    yield start
    for one in running:
        one.kill()
        one.wait()


def engine_at(tmp_path, url, *, api=ServerApi.native, model=None, timeout_s=10.0):
    job = make_job(tmp_path)
    server = job.config.inference.server
    server.url, server.api, server.model, server.request_timeout_s = url, api, model, timeout_s
    return SglangServerEngine(job)


def test_a_server_of_our_own_starts_answers_and_goes(tmp_path):
    engine = SglangServerEngine(make_job(tmp_path))
    started = engine.start(str(tmp_path / "model"), Tokenizer())
    assert (started.name, started.kv_tokens, started.context_tokens) == ("sglang_server", 4321, 64)
    assert [one.ids for one in engine.generate(requests((5, 6)), SAMPLING)] == [(5, 6)]
    session = engine._host.process.pid
    with pytest.raises(EngineError, match=r"SGLang ended while it answered"):
        list(engine.generate(requests((DIE,)), SAMPLING))
    engine.stop()
    wait_until_gone(session)


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_START", "RuntimeError: SGLang only supports sm75 and above.")
    engine = SglangServerEngine(make_job(tmp_path))
    with pytest.raises(EngineError, match=r"does not run on this GPU"):
        engine.start(str(tmp_path / "model"), Tokenizer())
    wait_until_gone(engine._host.process.pid)


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path):
    job = make_job(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        job.config.inference.server.port = taken.getsockname()[1]
        with pytest.raises(UserError, match=r"Port \d+ of 127.0.0.1 cannot be used.*inference\.server\.url"):
            SglangServerEngine(job).start(job.model_source, Tokenizer())
    assert not job.paths.log.exists()


def test_what_a_further_try_can_mend_is_tried_again(tmp_path, serve):
    engine = engine_at(tmp_path, serve(), timeout_s=1.0)
    engine.start("/elsewhere/small-model", Tokenizer())
    asked = requests((5, 6), (BUSY_ONCE,), (DROP_ONCE,), (BUSY,), (HANG,), (ABORTED,))
    got = {one.index: one for one in engine.generate(asked, SAMPLING)}
    assert [got[at].ids for at in range(3)] == [(5, 6), (BUSY_ONCE,), (DROP_ONCE,)]
    assert got[3].finish == "abort" and "503: too many requests" in got[3].error
    assert got[4].finish == "abort" and "No answer within 1 s" in got[4].error
    assert (got[5].finish, got[5].error) == ("abort", "Out of room")
    assert got[0].first_token_s == 0.5 and got[0].latency_s > 0
    assert engine.counters() == {"last_gen_tokens_per_s": 0.0}


@pytest.mark.parametrize(("kind", "begins"), [(MALFORMED, r"\{'answer': 'yyy"), (NOT_JSON, "<html>zzz")])
def test_a_reply_that_is_something_else_is_shown(tmp_path, serve, kind, begins):
    engine = engine_at(tmp_path, serve())
    engine.start(MODEL, Tokenizer())
    with pytest.raises(EngineError, match=begins) as failed:
        list(engine.generate(requests((kind,)), SAMPLING))
    assert len(failed.value.why) < 250


def test_a_server_that_dies_midway_loses_nothing_that_was_reported(tmp_path, serve):
    engine, got = engine_at(tmp_path, serve()), []
    engine.start(MODEL, Tokenizer())
    with pytest.raises(EngineError, match=r"There is no answer from http"):
        for one in engine.generate(requests((5,)), SAMPLING):
            got.append(one)
        for one in engine.generate(requests((DIE,)), SAMPLING):
            got.append(one)
    assert [one.ids for one in got] == [(5,)]


@pytest.mark.parametrize("api", ServerApi)
def test_a_server_of_another_model_is_refused_with_both_names(tmp_path, serve, api):
    with pytest.raises(UserError, match=r"serves other/model, and this run asks for /x/small-model"):
        engine_at(tmp_path, serve("other/model"), api=api).start("/x/small-model", Tokenizer())


def test_no_server_and_a_server_of_something_else_are_told_apart(tmp_path, serve):
    with pytest.raises(EngineError, match=r"There is no answer from http://127.0.0.1:9"):
        engine_at(tmp_path, "http://127.0.0.1:9").start(MODEL, Tokenizer())
    with pytest.raises(EngineError, match=r"It begins: '<html>xxx"):
        engine_at(tmp_path, serve(STUB_INFO="html")).start(MODEL, Tokenizer())


def test_the_openai_api_takes_tokens_where_it_can_and_text_elsewhere(tmp_path, serve):
    for env, prompts in ({}, "ids"), ({"STUB_TEXT_ONLY": "1"}, "text"):
        engine = engine_at(tmp_path, serve(**env), api=ServerApi.openai)
        started = engine.start(MODEL, Tokenizer())
        assert (started.context_tokens, started.settings["prompts"]) == (64, prompts)
        (got,) = engine.generate(requests((5, 6)), SAMPLING)
        assert (got.ids, got.text, got.finish, got.prompt_tokens) == (None, "5 6 2", "stop", 2)
        assert engine.counters() == {}


def test_one_of_several_served_models_must_be_named(tmp_path, serve):
    url = serve("one,two")
    with pytest.raises(UserError, match=r"serves 2 models.*Name one of them: one, two"):
        engine_at(tmp_path, url, api=ServerApi.openai).start(MODEL, Tokenizer())
    with pytest.raises(UserError, match=r"'tow' is not a known served model.*Did you mean two"):
        engine_at(tmp_path, url, api=ServerApi.openai, model="tow").start(MODEL, Tokenizer())
    engine = engine_at(tmp_path, url, api=ServerApi.openai, model="two")
    assert engine.start(MODEL, Tokenizer()).settings["model"] == "two"
