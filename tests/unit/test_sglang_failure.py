"""One message for each way in which SGLang is known to fail, with the direction to turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsys_exp.workers.engines.sglang_failure import explain

LOG = Path("log.txt")
NOISE = "Ignore import error when loading sglang.srt.models.x: No module named 'torchaudio'\n"


@pytest.mark.parametrize(
    ("printed", "kind", "said"),
    [
        ("RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.1. Raise"
         " it above 0.144", "config", "Raise inference.sglang.mem_fraction_static above 0.144"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "config",
         "Raise inference.sglang.mem_fraction_static (it is 0.9)"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2 GiB", "oom_gpu",
         "Lower inference.sglang.mem_fraction_static (it is 0.9)"),
        ("torch.OutOfMemoryError: CUDA out of memory.\nException: Capture prefill CUDA graph failed: x", "oom_gpu",
         "captured CUDA graphs"),
        ("Exception: Capture cuda graph failed: CUDA error: invalid argument", "engine", "invalid argument"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB", "oom_gpu",
         "Lower inference.sglang.mem_fraction_static (it is 0.9)"),
        ("RuntimeError: SGLang only supports sm75 and above.", "gpu", "inference.engine=transformers"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "gpu", "8.0"),
        ("ModuleNotFoundError: No module named 'sgl_kernel'", "missing_package", "sgl_kernel is missing"),
        ("ImportError: cannot import name 'x' from 'transformers'", "missing_package", "cannot import name 'x'"),
        ("OSError: [Errno 98] error while attempting to bind on address: address already in use", "port", "taken"),
        ("OSError: Can't load the configuration of '/m'.", "config", "finds no model at /m"),
        ("RuntimeError: Cannot find any model weights with `/m`", "config", "no weights in /m"),
        ("ValueError: Prefill out of memory. Try to lower your batch size.", "oom_gpu", "max_running_requests"),
        ("RuntimeError: No CUDA GPUs are available", "gpu", "sees no GPU"),
        ("Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT", "killed", "scheduler_0"),
        ("ZeroDivisionError: division by zero", "engine", "division by zero"),
    ],
)  # fmt: skip
def test_a_known_end_is_explained(printed, kind, said):
    settings = {"mem_fraction_static": 0.9, "model_path": "/m", "python": "/p"}
    error = explain(NOISE + printed, settings, what="SGLang did not start", log=LOG)
    assert error.kind == kind
    assert said in str(error)
    assert error.exit_code == (2 if kind in ("config", "gpu", "port", "missing_package") else 4)


def test_a_process_that_was_killed_says_so():
    error = explain(NOISE, {}, what="SGLang ended while it answered", log=LOG, returncode=-9)
    assert error.kind == "killed" and "SIGKILL" in str(error)


def test_a_process_that_sglang_ended_itself_names_what_failed():
    printed = "Scheduler hit an exception: Traceback (most recent call last):\nAssertionError: no such row\n"
    error = explain(printed, {}, what="SGLang ended while it answered", log=LOG, returncode=-9)
    assert error.kind == "engine" and "AssertionError: no such row" in str(error)


def test_what_no_rule_knows_points_to_the_log():
    error = explain(NOISE, {}, what="SGLang did not start", log=LOG, returncode=1)
    assert error.kind == "engine" and "log.txt" in str(error)
