"""The tier `simulate`: from a case to a forecast, by running real code on shapes."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.architecture.families import FAMILIES
from planner.disk import disk_bytes
from planner.errors import CaseError, NotSimulated
from planner.forecast import SIMULATE, Forecast
from planner.forecasting import forecast_of, without_collecting
from planner.host import host_bytes
from planner.simulate.unknown import read_case
from planner.tables import CPU
from planner.training_case import TrainingCase
from planner.uncertainty import simulated_residuals

MOST_SAID = 200
NEEDED = ("torch", "transformers", "deepspeed", "peft")


@dataclass(frozen=True)
class Simulation:
    """A forecast with the run behind it, whose recorder knows what each allocation was for."""

    case: TrainingCase
    forecast: Forecast
    run: Any


def simulate(content: Mapping[str, Any], *, ranks_per_node: int | None = None) -> Forecast:
    """Forecast a training case by running its real code on shapes.

    Args:
        content: in the case format; its family need not be known to the planner.
        ranks_per_node: GPUs of one machine, for its main memory; None: all of the case.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    return simulation(content, ranks_per_node=ranks_per_node).forecast


def simulation(
    content: Mapping[str, Any],
    *,
    ranks_per_node: int | None = None,
    rank: int = 0,
    folder: Path | None = None,
    trust: bool = False,
) -> Simulation:
    """The same with the run.

    Args:
        content: in the case format.
        ranks_per_node: GPUs of one machine; None: all of the case.
        rank: whose memory.
        folder: of the model, where it may have brought code of its own.
        trust: whether that code may run.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    began = time.perf_counter()
    case, config = readable(content, folder=folder, trust=trust)
    if not 0 <= rank < case.world_size:
        raise CaseError(f"rank is {rank}; it must lie between 0 and {case.world_size - 1}")
    run = _played(case, content, config, rank=rank, trust=trust)
    host = host_bytes(case, run.weights, ranks_per_node=ranks_per_node or case.world_size)
    forecast = forecast_of(
        case,
        run.arena,
        tier=SIMULATE,
        start_peak_bytes=run.start_peak_bytes,
        host=host,
        disk=disk_bytes(case, run.weights),
        seconds=time.perf_counter() - began,
        residuals=simulated_residuals(case),
    )
    return Simulation(case, forecast, run)


def readable(
    content: Mapping[str, Any], *, folder: Path | None = None, trust: bool = False
) -> tuple[TrainingCase, Any]:
    """Return a case that can be simulated, and transformers' configuration; raises as `simulation` does."""
    case, config = _read(content, folder=folder, trust=trust)
    _refuse(case)
    return case, config


def _read(content: Mapping[str, Any], *, folder: Path | None, trust: bool) -> tuple[TrainingCase, Any]:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise NotSimulated(f"tier simulate runs the real code: {', '.join(missing)} must be installed")
    from planner.simulate.quiet import load_deepspeed, quiet

    try:
        load_deepspeed()
    except Exception as error:  # an installation that is broken, or too little memory to load it
        said = str(error).strip().split("\n")[0][:MOST_SAID] or type(error).__name__
        raise NotSimulated(f"tier simulate runs the real code, which cannot be imported: {said}") from error
    with quiet():
        return read_case(content, folder=folder, trust=trust)


def trained_numel(content: Mapping[str, Any], *, folder: Path | None = None, trust: bool = False) -> int:
    """Count the elements that a case trains, of the real model; raises as `simulation` does.

    It is counted for a job on the CPU as well.
    """
    case, config = _read(content, folder=folder, trust=trust)
    from planner.simulate.accelerator import SimulatedAccelerator, installed
    from planner.simulate.model import build_model, prepare
    from planner.simulate.quiet import quiet
    from planner.simulate.run import SimulatedRun
    from planner.simulate.shaped.flash import flash_attention

    plain = replace(case, zero_stage=0, gradient_checkpointing=False, quantization=None, liger=False)
    try:
        recorder = SimulatedRun(plain, content, config).recorder
        with quiet(), installed(SimulatedAccelerator(recorder)), flash_attention(plain):
            model = prepare(plain, build_model(plain, config, {}, recorder, trust=trust))
    except CaseError:
        raise
    except Exception as error:  # whatever transformers and peft raise
        raise NotSimulated(_failure(case, "", error)) from error
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def _played(case: TrainingCase, content: Mapping[str, Any], config: Any, *, rank: int, trust: bool) -> Any:
    from planner.simulate.quiet import quiet
    from planner.simulate.run import SimulatedRun

    run = SimulatedRun(case, content, config, rank=rank, trust=trust)
    try:
        with quiet(), without_collecting():
            run.play()
    except CaseError:
        raise
    except Exception as error:  # whatever transformers, peft and DeepSpeed raise
        raise NotSimulated(_failure(case, run.modules.now(), error)) from error
    return run


def _failure(case: TrainingCase, where: str, error: Exception) -> str:
    """What went wrong in which module, and at which operator where torch says so."""
    if _ran_short(error):
        return (
            f"{case.architecture.model_type} cannot be simulated here: this process is given no more main "
            "memory, or addresses (`ulimit -v`)"
        )
    said = str(error).strip().split("\n")[0][:MOST_SAID] or type(error).__name__
    module = f" in module {where}" if where else ""
    return (
        f"{case.architecture.model_type} cannot be simulated: {said} ({type(error).__name__}{module}); "
        "tier dryrun runs it on a GPU"
    )


def _ran_short(error: Exception) -> bool:
    """Whether this process ran out of main memory, as Python, the system or torch say it."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _refuse(case: TrainingCase) -> None:
    """Raises NotSimulated for settings whose code cannot run without a GPU, or is not simulated."""
    base = case.quantization
    reasons = {
        "a gptq base of 3 bits (what its compiled code makes, only a GPU can tell)": base is not None
        and (base.kind, base.bits) == ("gptq", 3),
        "flash_attention_2 over padded batches (it goes by how many tokens are real)": case.padded
        and case.attention == "flash_attention_2",
        "LitGPT's code": "litgpt" in (case.attention_code, case.loss.partition("_")[0]),
        "a job without a GPU": case.device == CPU,
        "a perceptron": bool(case.architecture.widths),
    }
    refused = [name for name, applies in reasons.items() if applies]
    if refused:
        known = case.architecture.model_type in FAMILIES or case.architecture.widths
        instead = "; use tier formula" if known else ""
        raise NotSimulated(f"tier simulate does not take {', '.join(refused)}{instead}")
