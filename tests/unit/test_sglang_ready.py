"""Which engines can run here, and the reasons against the others: from versions and what nvidia-smi says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.cli import doctor
from llmsys_exp.doctor import look
from llmsys_exp.doctor.engines import inference_engines, pythons
from llmsys_exp.doctor.look import Look
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.launch.sglang import sglang_version, versions_in
from llmsys_exp.launch.sglang_ready import cuda_of, reasons_against

WHOLE = {"sglang": "0.5.17", "sglang-kernel": "0.4.5", "torch": "2.11.0+cu130"}
H200 = {"name": "NVIDIA H200", "driver_version": "580.65.06", "compute_cap": "9.0"}


def card(**changes: str) -> list[dict[str, str]]:
    return [{**H200, **changes}]


def looking_at(gpus: list[dict[str, str]], **changes: Any) -> Look:
    found = Look(**changes)
    found.__dict__["gpus"] = gpus
    return found


@pytest.mark.parametrize(
    ("versions", "gpus", "said"),
    [
        (WHOLE, card(), []),
        ({}, card(), ["lacks sglang"]),
        ({"sglang": "0.5.17", "torch": "2.11.0"}, card(), ["lacks sglang-kernel"]),
        ({**WHOLE, "torch": "2.13.0+cpu"}, [], ["built without CUDA", "finds no GPU"]),
        (WHOLE, card(name="V100", compute_cap="7.0"), ["V100 has compute capability 7.0, and SGLang asks for 7.5"]),
        (WHOLE, card(name="T4", compute_cap="7.5"), ["kernels in SGLang's wheel begin at 8.0"]),
        (WHOLE, card(driver_version="550.54.15"), ["driver 550.54.15 is too old for CUDA 13"]),
        ({**WHOLE, "torch": "2.9.1"}, card(driver_version="550.54.15"), []),
        (WHOLE, card(compute_cap="[N/A]"), []),
    ],
    ids=["ready", "no sglang", "no kernels", "cpu", "volta", "turing", "driver", "cuda 12", "driver tells nothing"],
)  # fmt: skip
def test_reasons_against_sglang(versions: Any, gpus: Any, said: list[str]) -> None:
    found = reasons_against(versions, gpus)
    assert len(found) == len(said)
    assert all(part in reason for part, reason in zip(said, found, strict=True))


def test_the_cuda_that_a_torch_is_built_for() -> None:
    named = ("2.11.0", "2.10.0", "2.9.1+cu126", "2.11.0+cu130", "2.13.0+cpu", "2.9.1+rocm6.4")
    assert [cuda_of(name) for name in named] == [13, 12, 12, 13, None, None]


def test_versions_come_from_the_interpreter_itself() -> None:
    assert "sglang" not in versions_in(sys.executable, ["sglang"])
    with pytest.raises(UserError, match="/nowhere/python does not run"):
        versions_in("/nowhere/python")
    assert sglang_version("/nowhere/python") is None


def test_an_interpreter_named_by_an_override_is_looked_at(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"sglang": "0.5.17", "torch": "2.11.0", "sgl-kernel": "0.3.5"}\'\n')
    python.chmod(0o755)
    found = pythons([f"inference.sglang.python={python}"])
    engines = {one["engine"]: one for one in inference_engines(looking_at(card(), **found))}
    assert (engines["sglang"]["python"], engines["sglang"]["versions"]["sglang"]) == (str(python), "0.5.17")
    assert not [reason for reason in engines["sglang"]["reasons"] if "interpreter" in reason]
    with pytest.raises(ConfigError, match=r"Did you mean inference\.sglang\.python"):
        pythons(["inference.sglang.pyton=x"])


def test_doctor_shows_each_engine_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"compute_cap": [{"compute_cap": "7.0"}]}
    other = [{"name": "Tesla V100", "driver_version": "580.1"}]
    monkeypatch.setattr(look, "smi", lambda query: told.get(query.partition("=")[2], other))
    monkeypatch.setattr("llmsys_exp.doctor.engines.versions_in", lambda python: WHOLE)
    assert doctor.run([]) == 2, "this torch has no CUDA"
    text = " ".join(capsys.readouterr().out.split())  # a long path of the interpreter wraps the table
    assert "sglang 0.5.17" in text
    assert "Tesla V100 has compute capability 7.0, and SGLang asks for 7.5" in text
    doctor.run(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert [one["engine"] for one in report["inference"]][:2] == ["transformers", "sglang"]
    assert report["gpus"][0]["compute_cap"] == "7.0"


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\n", "#!/bin/sh\necho hello\n", "#!/bin/sh\necho 5\n", "no program"]
)
def test_a_program_that_is_no_interpreter_is_refused(tmp_path: Path, text: str) -> None:
    program = tmp_path / "python"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"is not a Python interpreter|does not run"):
        versions_in(str(program))
    assert sglang_version(str(program)) is None
