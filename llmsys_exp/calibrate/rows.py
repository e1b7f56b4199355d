"""What one run says of the machine it was on: memory beside the allocator, and seconds of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.calibrate.device import Device, device_of
from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import Config, ModelKind
from llmsys_exp.config.schema import Device as Where
from llmsys_exp.errors import UserError
from llmsys_exp.plan.case import planner_case
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.manifest import is_edited
from llmsys_exp.runs.migrate import read_manifest
from llmsys_exp.runs.told import group
from planner.units import GIB

FIRST = "model loaded"
LEAST_STEPS = 4
"""The first two of a run are not counted in its speed."""
LEAST_FILL = 0.9
"""Share of `data.max_length` that rows have to fill: a forecast of speed counts whole rows."""


class NotUsed(Exception):
    """Why a run says nothing."""


@dataclass(frozen=True)
class Row:
    """One run."""

    run: str
    device: Device
    ranks: int
    dtype: str
    first_gib: float | None = None
    """In use on the device less reserved, when the model was loaded; None on the CPU."""
    last_gib: float | None = None
    """The most of the same in any phase, of the rank that had most."""
    speed: float | None = None
    """Measured over forecast seconds of a step."""
    no_speed: str = ""
    """Why there is no speed."""


def read_row(file: Path) -> Row:
    """Return what the run of a manifest measured.

    Raises:
        NotUsed: when it says nothing that counts, with the reason.
        UserError: when the manifest cannot be read.
    """
    record = read_manifest(file)
    if is_edited(read_json(file)):
        raise NotUsed("its manifest was changed by hand")
    train = group(record, "results", "train")
    if not train:
        raise NotUsed("it has trained nothing")
    try:
        device = device_of(record["machine"])
    except ValueError as error:
        raise NotUsed(str(error)) from error
    ranks = train.get("memory_per_rank")
    phases = [_phases(rank) for rank in ranks] if isinstance(ranks, list) else []
    on_gpu = any(phases)
    if device is None or device.on_cpu is on_gpu:
        raise NotUsed("its manifest does not tell which device it ran on")
    config = _config(record)
    if config.hardware.nodes > 1:
        raise NotUsed("it ran on several machines")
    row = Row(str(record["id"]), device, len(phases) or 1, str(train.get("dtype")))
    if on_gpu:
        first, last = _outside(phases)
        row = replace(row, first_gib=first, last_gib=last)
    try:
        return replace(row, speed=_speed(config, train, row))
    except NotUsed as reason:
        return replace(row, no_speed=str(reason))


def _config(record: Mapping[str, Any]) -> Config:
    try:
        return from_plain(record["config"])
    except UserError as error:
        raise NotUsed(f"its settings are not those of today: {error}") from error


def _phases(rank: Any) -> list[tuple[str, float]]:
    """Name and GiB outside of the allocator of each phase in which a rank trained on a GPU."""
    found: list[tuple[str, float]] = []
    for one in (rank.get("phases") if isinstance(rank, Mapping) else None) or ():
        used, reserved = one.get("device_used_bytes"), one.get("reserved_bytes")
        name = str(one.get("phase"))
        if isinstance(used, int) and isinstance(reserved, int) and not name.startswith("evaluate"):
            found.append((name, (used - reserved) / GIB))
    return found


def _outside(phases: Sequence[Sequence[tuple[str, float]]]) -> tuple[float | None, float]:
    most = max(phases, key=lambda rank: max((gib for _, gib in rank), default=0.0))
    first = next((gib for name, gib in most if name == FIRST), None)
    return first, max(gib for _, gib in most)


def _speed(config: Config, train: Mapping[str, Any], row: Row) -> float:
    """Return measured over forecast seconds of a step.

    Raises:
        NotUsed: where the two are not of the same thing.
    """
    if config.model.kind is not ModelKind.causal_lm:
        raise NotUsed("there is no forecast of a perceptron's speed")
    if not row.device.kind:
        raise NotUsed(f"{row.device.name} is not in the planner's table of GPUs")
    if row.device.on_cpu and row.ranks > 1:
        raise NotUsed("ranks on a CPU share its cores")
    if config.offload.optimizer not in (Where.none, Where.auto):
        raise NotUsed("with an offloaded optimizer the host counts more than the device")
    steps, tokens = train.get("steps"), train.get("tokens")
    rate = group(train, "speed").get("tokens_per_s")
    if not (isinstance(steps, int) and isinstance(tokens, int) and isinstance(rate, float) and rate > 0):
        raise NotUsed("it does not tell the speed of its later steps")
    if steps < LEAST_STEPS:
        raise NotUsed(f"it has {steps} steps, and {LEAST_STEPS} are needed")
    training, length = config.training, config.data.max_length
    rows = steps * row.ranks * int(training.micro_batch) * int(training.grad_accum)
    fill = tokens / (rows * length)
    if fill < LEAST_FILL and training.micro_batch != 1:
        raise NotUsed(f"its rows fill {fill:.0%} of data.max_length, so that padding is not known")
    # a row that is alone in its batch is not padded
    mean_length = length if fill >= LEAST_FILL else max(1, round(tokens / rows))
    return tokens / steps / rate / _forecast_s(config, row, mean_length)


def _forecast_s(config: Config, row: Row, length: int) -> float:
    from planner.choose import option_of

    hardware = replace(config.hardware, gpu=row.device.kind)  # it may have been planned for another card
    try:
        case = planner_case(replace(config, hardware=hardware), dtype=row.dtype)
        return option_of(replace(case, seq_len=length, calibration=None)).step_s
    except (UserError, ValueError, KeyError) as error:
        raise NotUsed(f"it cannot be planned today: {error}") from error
