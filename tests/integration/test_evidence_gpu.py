"""Evidence on a real card: NVML's facts against nvidia-smi's and torch's, and energy two ways."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from llmsys_exp.evidence import gpus as gpus_module
from llmsys_exp.evidence.energy import EnergyMeter
from llmsys_exp.evidence.machine import machine_facts
from llmsys_exp.evidence.packages import installed
from llmsys_exp.launch.gpus import installed_cards

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

WORK = """
import time, torch
held = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
until = time.monotonic() + 8
while time.monotonic() < until:
    for _ in range(50):
        two = one @ one
    torch.cuda.synchronize()
print(torch.cuda.get_device_name(0), torch.version.cuda, ".".join(map(str, torch.cuda.nccl.version())), sep="|")
"""


@pytest.fixture(scope="module", autouse=True)
def card() -> None:
    if not installed_cards():
        pytest.skip("needs a CUDA device")


def test_facts_of_nvml_are_those_of_nvidia_smi():
    notes: list[str] = []
    found = machine_facts(["0"], notes)
    assert notes == [] and found["gpus"][0]["in_run"]
    other = gpus_module._from_smi()
    for mine, theirs in zip(found["gpus"], other["gpus"], strict=True):
        assert (mine["name"], mine["uuid"]) == (theirs["name"], theirs["uuid"])
        assert mine["memory_bytes"] == pytest.approx(theirs["memory_bytes"], rel=1e-3)
    assert found["driver"] == other["driver"] and found["cuda_driver"] == other["cuda_driver"]
    if len(found["gpus"]) > 1:
        assert set(found["topology"]) == {f"GPU{one}" for one in range(len(found["gpus"]))}
    print(found)


def test_energy_is_counted_and_sampled_alike_while_a_card_works():
    meter = EnergyMeter(["0"], interval_s=0.2)
    began = time.monotonic()
    meter.start()
    opened_s = time.monotonic() - began
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    card = meter._cards[0]
    found = meter.stop()
    assert found is not None and found["gpus"][0]["how"] == "counter"
    counted_j = found["gpus"][0]["wh"] * 3600
    print(
        f"counter {counted_j:.0f} J, samples {card.sampled_j:.0f} J, NVML opened in {opened_s:.3f} s, {found}"
    )
    assert counted_j == pytest.approx(card.sampled_j, rel=0.15)
    assert found["gpus"][0]["most_used_bytes"] > 8 << 30 and found["gpus"][0]["mean_w"] > 50
    name, cuda, nccl = done.stdout.strip().split("|")
    told = installed()
    assert told["cuda"] == cuda and machine_facts([], [])["gpus"][0]["name"] == name
    # the wheel's number has the same first parts: 2.28.9 of torch is nvidia-nccl-cu13 2.28.9
    assert told["nccl"] is None or told["nccl"].split(".")[:2] == nccl.split(".")[:2]
