"""`training.deterministic`: what is set before a worker starts, in torch, and said of operators that cannot."""

from __future__ import annotations

import os

import pytest

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.launch.environment import DETERMINISTIC, worker_variables
from llmsys_exp.workers.determinism import be_deterministic, told_plainly


def variables(config: Config, device: str) -> dict[str, str]:
    return worker_variables(config, {}, python="python", device=device, ranks=1)


def test_libraries_are_told_before_they_start_and_only_where_it_is_asked_for():
    config = Config()
    assert not variables(config, "cuda").keys() & DETERMINISTIC.keys()
    config.training.deterministic = True
    assert variables(config, "cuda").items() >= DETERMINISTIC.items()
    assert not variables(config, "cpu").keys() & DETERMINISTIC.keys()
    config.launcher.env = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert variables(config, "cuda")["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_torch_takes_deterministic_operators_only(monkeypatch: pytest.MonkeyPatch):
    import torch

    for name in DETERMINISTIC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    try:
        be_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        for name in DETERMINISTIC:
            os.environ.pop(name, None)


def test_an_operator_that_cannot_is_named_with_what_to_change():
    with (
        pytest.raises(UserError, match=r"cumsum_cuda_kernel does not have a deterministic implementation"),
        told_plainly(),
    ):
        raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set ...")
    with pytest.raises(RuntimeError, match="another"), told_plainly():
        raise RuntimeError("another")
