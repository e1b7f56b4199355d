"""Packages and Python of then against those of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmsys_exp.reproduce.drift import Drift, Effect, short
from llmsys_exp.reproduce.effects import NOTHING, NUMBERS, ROWS, of_package

SHOWN = 4
_HARMLESS = (
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "SLURM_", "XDG_", "LLMSYS_", "CONDA_"),
    *("CUDA_VISIBLE", "CUDA_DEVICE_ORDER", "CUDA_HOME", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"),
    *("VIRTUAL_ENV", "LANG", "LC_", "TZ", "TMPDIR", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONHASHSEED"),
    *("TORCH_CPP_LOG", "DEEPSPEED_LOG", "CC", "CXX", "NCCL_DEBUG", "TORCH_EXTENSIONS_DIR"),
    "TORCH_CUDA_ARCH_LIST",
)
"""Variables, or how their names begin, that say where things lie and what is printed."""
REQUIREMENTS = "--environment FILE writes the versions of then as a requirements file"


def package_drifts(
    then: Mapping[str, Any], now: Mapping[str, Any], *, whole: bool, used: frozenset[str] = frozenset()
) -> Iterator[Drift]:
    """Yield a drift for each package that may change something, and one for all others.

    Args:
        then: distribution -> version.
        now: the same.
        whole: whether `then` names every distribution; an old manifest names ten.
        used: packages beside the usual ones that the run computed with.
    """
    old, new = _by_name(then), _by_name(now)
    others = []
    for name in sorted({*old, *new} if whole else old):
        was, found = old.get(name), new.get(name)
        if was == found:
            continue
        reach = of_package(name)
        if reach is NOTHING and name not in used:
            others.append(_said(name, was, found))
            continue
        yield Drift(
            "packages",
            name,
            _said(name, was, found),
            reach.effect,
            reach.shows_in,
            then=was,
            now=found,
            do=REQUIREMENTS,
        )
    if others:
        listed = "; ".join(others[:SHOWN]) + (f"; {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        what = f"{len(others)} packages that no worker computes with: {listed}"
        yield Drift("packages", "others", what, Effect.NOTHING, now=others)


def python_drifts(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Drift]:
    """Yield drifts of the interpreter and of the system below it."""
    was, found = then.get("python"), now.get("python")
    if was and found and was != found:
        same_minor = str(was).split(".")[:2] == str(found).split(".")[:2]
        # `random` and dictionaries may differ from one minor version to the next, in a patch they do not
        reach = NOTHING if same_minor else ROWS
        what = f"Python is {found}; it was {was}"
        yield Drift("python", "python", what, reach.effect, reach.shows_in, was, found, REQUIREMENTS)
    was, found = then.get("platform"), now.get("platform")
    if was and found and was != found:
        what = f"the system is {short(found, 60)}; it was {short(was, 60)}"
        yield Drift("python", "platform", what, Effect.NOTHING, (), was, found)


def variable_drifts(
    then: Mapping[str, Any], now: Mapping[str, Any], *, on_gpu: bool, ranks: int
) -> Iterator[Drift]:
    """Yield a drift for each environment variable that is another one."""
    for name in sorted({*then, *now}):
        was, found = then.get(name), now.get(name)
        if was == found:
            continue
        effect, shows_in = _of_variable(name, on_gpu=on_gpu, ranks=ranks)
        what = f"{name} is {short(found)}; it was {short(was)}"
        undo = f"export {name}={was}" if was is not None else f"unset {name}"
        yield Drift("variables", name, what, effect, shows_in, was, found, undo)


def _of_variable(name: str, *, on_gpu: bool, ranks: int) -> tuple[Effect, tuple[str, ...]]:
    """What another value of a variable may change; one that is not known may change numbers."""
    if name.endswith("ALLOC_CONF"):
        return Effect.MEMORY, ("memory",)
    if name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        return (Effect.SPEED, ("speed",)) if on_gpu else (NUMBERS.effect, NUMBERS.shows_in)
    if name.startswith(("NCCL_", "GLOO_")):
        return (NUMBERS.effect, NUMBERS.shows_in) if ranks > 1 else (Effect.NOTHING, ())
    if name.startswith(_HARMLESS) or name.lower().endswith("_proxy"):
        return Effect.NOTHING, ()
    if name.startswith(("MALLOC_", "DS_", "TRITON_CACHE", "MAX_JOBS")):
        return Effect.SPEED, ("speed", "memory")
    return NUMBERS.effect, NUMBERS.shows_in


def _by_name(packages: Mapping[str, Any]) -> dict[str, str]:
    """Names as the index spells them: lower case, dashes."""
    return {str(name).lower().replace("_", "-"): str(version) for name, version in packages.items()}


def _said(name: str, was: str | None, found: str | None) -> str:
    if found is None:
        return f"{name} {was} is not installed any more"
    if was is None:
        return f"{name} {found} was not installed"
    return f"{name} is {found}; it was {was}"
