"""The machine of then against this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmsys_exp.reproduce.drift import (
    ALL_NUMBERS,
    EVALUATION,
    LATER,
    MEMORY,
    SPEED,
    WEIGHTS,
    Drift,
    Effect,
    short,
)

SUMS = (*ALL_NUMBERS, SPEED)
UPDATES = (LATER, EVALUATION, WEIGHTS)


def machine_drifts(
    then: Mapping[str, Any], now: Mapping[str, Any], *, on_gpu: bool, ranks: int
) -> Iterator[Drift]:
    """Yield what differs between two machines, by what the run used of them.

    Args:
        then: `machine` of the manifest.
        now: the same of this machine.
        on_gpu: whether the run computed on GPUs.
        ranks: of the run.
    """
    yield from _processor(then, now, on_gpu=on_gpu)
    if on_gpu:
        yield from _gpus(_in_run(then), _in_run(now))
        yield from _driver(then, now, ranks=ranks)
    was, found = then.get("host_memory_bytes"), now.get("host_memory_bytes")
    if was and found and abs(found / was - 1) > 0.02:
        what = f"main memory is {found / 2**30:.0f} GiB; it was {was / 2**30:.0f} GiB"
        yield Drift("hardware", "host_memory_bytes", what, Effect.NOTHING, (), was, found)


def _processor(then: Mapping[str, Any], now: Mapping[str, Any], *, on_gpu: bool) -> Iterator[Drift]:
    effect, shows_in = (Effect.SPEED, (SPEED,)) if on_gpu else (Effect.NUMBERS, SUMS)
    was, found = then.get("cpu_name"), now.get("cpu_name")
    if was and found and was != found:
        what = f"the processor is {short(found)}; it was {short(was)}"
        yield Drift("hardware", "cpu_name", what, effect, shows_in, was, found)
    was, found = then.get("cpus"), now.get("cpus")
    if was and found and was != found:
        why = "" if on_gpu else ": as many threads add up, in another order"
        what = f"{found} cores may be used; it was {was}{why}"
        do = "" if on_gpu or found < was else f"taskset -c 0-{was - 1} llmsys reproduce ..."
        yield Drift("hardware", "cpus", what, effect, shows_in, was, found, do)
    elif then.get("host") and now.get("host") and then["host"] != now["host"]:
        what = "another machine, of the same kind as far as the record tells"
        yield Drift("hardware", "host", what, Effect.SPEED, (SPEED,), then["host"], now["host"])


def _gpus(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[Drift]:
    if not then:
        return
    was, found = _names(then), _names(now)
    if was != found:
        what = f"GPUs: {', '.join(found) or 'none'}; it was {', '.join(was)}"
        yield Drift("hardware", "gpus", what, Effect.NUMBERS, (*SUMS, MEMORY), was, found)
        return
    old, new = ({str(one.get("uuid")) for one in cards} for cards in (then, now))
    if old != new:
        what = f"another {was[0]}: the same kind of GPU, not the same one"
        yield Drift("hardware", "uuid", what, Effect.SPEED, (SPEED,), sorted(old), sorted(new))
    sizes, sizes_now = ([one.get("memory_bytes") for one in cards] for cards in (then, now))
    if sizes != sizes_now and None not in (*sizes, *sizes_now):
        what = f"memory of the GPUs: {sizes_now} bytes; it was {sizes}"
        yield Drift("hardware", "gpu_memory", what, Effect.MEMORY, (MEMORY,), sizes, sizes_now)
    limits, limits_now = ([one.get("power_limit_w") for one in cards] for cards in (then, now))
    if limits != limits_now and None not in (*limits, *limits_now):
        what = f"power limits: {limits_now} W; it was {limits} W"
        yield Drift("hardware", "power_limit_w", what, Effect.SPEED, (SPEED,), limits, limits_now)


def _driver(then: Mapping[str, Any], now: Mapping[str, Any], *, ranks: int) -> Iterator[Drift]:
    kept = (
        ("driver", "the driver", Effect.MEMORY, (MEMORY, SPEED)),
        ("cuda_driver", "the driver's CUDA", Effect.MEMORY, (MEMORY, SPEED)),
        ("cuda", "CUDA", Effect.NUMBERS, SUMS),
        ("nccl", "NCCL", Effect.NUMBERS if ranks > 1 else Effect.NOTHING, UPDATES),
    )
    for key, name, effect, shows_in in kept:
        was, found = then.get(key), now.get(key)
        if was and found and was != found:
            what = f"{name} is {found}; it was {was}"
            yield Drift("driver", key, what, effect, shows_in, was, found)
    was, found = then.get("topology"), now.get("topology")
    if was and found and was != found and ranks > 1:
        what = "the GPUs are linked in another way, so NCCL may add up in another order"
        yield Drift("hardware", "topology", what, Effect.NUMBERS, (*UPDATES, SPEED), was, found)


def _in_run(machine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """GPUs that the run used; all of them where the record does not tell which."""
    cards = [one for one in machine.get("gpus") or () if isinstance(one, Mapping)]
    return [one for one in cards if one.get("in_run")] or cards


def _names(cards: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(str(one.get("name")) for one in cards)
