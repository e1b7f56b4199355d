"""Batch arithmetic: train_batch_size = micro_batch x grad_accum x GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import world_size

LARGEST_MICRO_BATCH = 64
OPEN_MICRO_BATCHES = (16, 8, 4, 2, 1)


def micro_batch_options(config: Config) -> tuple[int, ...]:
    """Micro-batches that the arithmetic allows, largest first.

    Raises:
        ConfigError: when the numbers given cannot be met.
    """
    training, ranks = config.training, world_size(config)
    micro, accum, total = training.micro_batch, training.grad_accum, training.global_batch
    if micro != AUTO:
        _check_product(int(micro), accum, total, ranks)
        return (int(micro),)
    if total is None:
        return OPEN_MICRO_BATCHES
    _check_divides(total, ranks, f"{ranks} ranks")
    share = total // ranks
    if accum != AUTO:
        _check_divides(share, int(accum), f"{ranks} ranks x grad_accum {accum}", whole=total)
        return (share // int(accum),)
    return tuple(n for n in range(min(share, LARGEST_MICRO_BATCH), 0, -1) if share % n == 0)


def _check_divides(value: int, by: int, shown: str, *, whole: int | None = None) -> None:
    if value < by or value % by:
        total = value if whole is None else whole
        raise ConfigError(
            [
                UserError(
                    f"training.global_batch={total} is not a multiple of {shown}",
                    why="global_batch = micro_batch x grad_accum x GPUs must come out even",
                    do=f"Nearest that does: {_nearest(total, by * (total // value))}",
                )
            ]
        )


def _nearest(total: int, by: int) -> int:
    return max(by, round(total / by) * by)


def _check_product(micro: int, accum: Any, total: int | None, ranks: int) -> None:
    if total is None:
        return
    if accum == AUTO:
        _check_divides(total, micro * ranks, f"micro_batch {micro} x {ranks} ranks")
    elif micro * int(accum) * ranks != total:
        raise ConfigError(
            [
                UserError(
                    f"training.global_batch={total} is not micro_batch {micro} x grad_accum {accum} x "
                    f"{ranks} ranks = {micro * int(accum) * ranks}",
                    do="Change one of the three, or set one of them to auto",
                )
            ]
        )


def settle_batch(
    config: Config, micro: int, choices: list[Any], *, make: Callable[[str, Any, str, bool], Any]
) -> None:
    """Write micro-batch, accumulation and global batch into the configuration, with reasons."""
    training, ranks = config.training, world_size(config)
    given_micro, given_accum = training.micro_batch != AUTO, training.grad_accum != AUTO
    training.micro_batch = micro
    if not given_accum:
        training.grad_accum = 1 if training.global_batch is None else training.global_batch // (micro * ranks)
    given_total = training.global_batch is not None
    training.global_batch = micro * int(training.grad_accum) * ranks
    arithmetic = f"{micro} x {training.grad_accum} x {ranks} ranks = {training.global_batch}"
    reason = "as set" if given_micro else "the largest that fits with the settings above"
    choices.append(make("training.micro_batch", micro, reason, given_micro))
    reason = "as set" if given_accum else f"so that {arithmetic}"
    choices.append(make("training.grad_accum", training.grad_accum, reason, given_accum))
    reason = "as set" if given_total else arithmetic
    choices.append(make("training.global_batch", training.global_batch, reason, given_total))
