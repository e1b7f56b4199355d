"""Puts this folder in reach of imports: helpers of unit and integration tests alike lie beside this file."""

import os

import pytest

os.environ["LLMSYS_CALIBRATION"] = "off"  # what somebody has measured on this machine is no part of a test


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
