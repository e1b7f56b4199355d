"""The tier `simulate`: from a case to a forecast, by running real code on shapes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from planner.disk import disk_bytes
from planner.errors import CaseError
from planner.forecast import Forecast
from planner.forecasting import forecast_of, without_collecting
from planner.host import host_bytes
from planner.simulate.unknown import read_case
from planner.tables import CPU
from planner.training_case import TrainingCase
from planner.uncertainty import residuals

TIER = "simulate"
MOST_SAID = 200
NEEDED = ("torch", "transformers", "deepspeed", "peft")


@dataclass(frozen=True)
class Simulation:
    """A forecast with the run behind it, whose recorder knows what each allocation was for."""

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
    content: Mapping[str, Any], *, ranks_per_node: int | None = None, rank: int = 0, trust: bool = False
) -> Simulation:
    """The same with the run; `rank` says whose memory, `trust` whether a model's own code may run.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    began = time.perf_counter()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CaseError(f"tier simulate runs the real code: {', '.join(missing)} must be installed")
    case, config = read_case(content)
    _refuse(case)
    if not 0 <= rank < case.world_size:
        raise CaseError(f"rank is {rank}; it must lie between 0 and {case.world_size - 1}")
    run = _played(case, content, config, rank=rank, trust=trust)
    host = host_bytes(case, run.weights, ranks_per_node=ranks_per_node or case.world_size)
    forecast = forecast_of(
        case,
        run.arena,
        tier=TIER,
        start_peak_bytes=run.start_peak_bytes,
        host=host,
        disk=disk_bytes(case, run.weights),
        seconds=time.perf_counter() - began,
        residuals=residuals(case),
    )
    return Simulation(forecast, run)


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
        raise CaseError(_failure(case, run, error)) from error
    return run


def _failure(case: TrainingCase, run: Any, error: Exception) -> str:
    """What went wrong in which module, and at which operator where torch says so."""
    said = str(error).strip().split("\n")[0][:MOST_SAID] or type(error).__name__
    module = f" in module {run.modules.now()}" if run.modules.now() else ""
    return (
        f"{case.architecture.model_type} cannot be simulated: {said} ({type(error).__name__}{module}); "
        "tier dryrun runs it on a GPU"
    )


def _refuse(case: TrainingCase) -> None:
    """Raises CaseError for settings whose code cannot run without a GPU, or is not simulated."""
    reasons = {
        "quantised weights": case.quantization is not None,
        "Liger kernels": case.liger,
        f"engine {case.engine}": case.engine not in ("deepspeed", "plain"),
        "sequence_parallel": case.sequence_parallel > 1,
        f"attention {case.attention}": case.attention not in ("sdpa", "eager"),
        "LitGPT's code": "litgpt" in (case.attention_code, case.loss.partition("_")[0]),
        "loss chunked": case.loss == "chunked",
        "outputs_kept": case.outputs_kept,
        f"checkpointing.kind {case.checkpointing.kind}": case.checkpointing.kind == "deepspeed",
        "offload to NVMe": "nvme" in (case.offload_optimizer, case.offload_param),
        "a job without a GPU": case.device == CPU,
        "a perceptron": bool(case.architecture.widths),
    }
    refused = [name for name, applies in reasons.items() if applies]
    if refused:
        raise CaseError(f"tier simulate does not take {', '.join(refused)}; use tier formula")
