"""Room on the disk and in memory, asked for before a step begins."""

from __future__ import annotations

import pytest

from llmsys_exp.config.plain import from_plain
from llmsys_exp.errors import DoesNotFit, UserError
from llmsys_exp.jobs import quantize_gate
from llmsys_exp.runs import room
from planner.units import GIB


def test_a_step_that_the_disk_has_no_room_for_is_refused_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_disk_bytes", lambda folder: 3 * GIB)
    room.need_disk("Quantising", 3 * GIB, tmp_path)
    with pytest.raises(
        UserError, match=rf"Quantising needs 4\.0 GiB on disk and 3\.0 are free \({tmp_path}\)"
    ):
        room.need_disk("Quantising", 4 * GIB, tmp_path)


def test_what_does_not_fit_is_told_with_its_largest_part():
    uses = {"base model": 5 * GIB, "process": GIB}
    assert room.lack_of_memory("Merging", uses, 6 * GIB, place="main memory", smaller="less") is None
    found = room.lack_of_memory(
        "Merging", uses, 5 * GIB, place="main memory", smaller="a smaller export.shard_gb"
    )
    assert isinstance(found, DoesNotFit)
    assert found.what == "Merging needs 6.0 GiB of main memory and 5.0 are free"
    assert found.why == "Largest part: base model, 5.0 GiB"
    assert found.do == "Set a smaller export.shard_gb, or run it anyway with gate=warn"


@pytest.mark.parametrize(("policy", "refused"), [("error", True), ("warn", False), ("off", False)])
def test_quantising_beyond_main_memory_is_refused_as_the_gate_says(policy, refused, tmp_path, monkeypatch):
    import sys
    from types import SimpleNamespace

    import numpy as np
    from safetensors.numpy import save_file

    from llmsys_exp.report.console import Console

    name = "model.layers.0.mlp.up_proj.weight"
    save_file({name: np.zeros((64, 64), dtype=np.float16)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(quantize_gate.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    config = from_plain({"gate": {"policy": policy}, "hardware": {"gpu": "cpu"}})

    def check():
        quantize_gate.check_quantize(config, source=tmp_path, folder=tmp_path, console=Console.on(sys.stdout))

    if not refused:
        return check()
    with pytest.raises(DoesNotFit, match=r"Quantising needs .* of main memory and 0\.0 are free"):
        check()
