"""The settings of a recorded run as a configuration of today: what was resolved then is what is run.

Settings that have come since take the value that leaves things as they were, their default; settings that are
gone are told of. Paths are found again: by where they were, else by what the configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.jobs.resume import fit_batch
from llmsys_exp.jobs.resume_overrides import apply_overrides
from llmsys_exp.plan.case import world_size
from llmsys_exp.reproduce.drift import Drift, Effect
from llmsys_exp.reproduce.effects import MEMORY_ONLY, NOTHING, of_setting
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.runs.folder import check_name
from llmsys_exp.runs.resume_rules import flat

NEUTRAL = ("resume", "paths", "data.preview")
"""Settings of where and how a run was started: the new run has its own."""
_BATCH = ("training.micro_batch", "training.grad_accum", "training.global_batch")
_TYPES = ("training.grad_accum_dtype", "method.lora.adapter_dtype")
_ROLES = {"train": "data.train", "heldout": "data.heldout", "prompts": "inference.prompts"}
FOLLOWS = ("data.dataset_info",)
"""What these say has been read into other settings already."""


@dataclass(frozen=True)
class Recreated:
    """A configuration that runs a recorded run again."""

    config: Config
    drifts: tuple[Drift, ...]
    """Settings that came or went, and those that the command line changes."""


def recreate(logged: Logged, overrides: Sequence[str], *, outputs: Path) -> Recreated:
    """Return the configuration to run, with what is not as it was.

    Args:
        logged: the run.
        overrides: what the command line sets on top.
        outputs: where the new run folder goes.

    Raises:
        UserError: for values that today's settings do not take.
    """
    plain, drifts = _known_today(logged.config)
    plain = _without(plain, NEUTRAL)
    config = _found_again(_built(plain, logged), logged)
    config.paths.outputs = str(outputs)
    changed = apply_overrides(config, overrides, reopens=True)
    _follow_dtype(config, changed, given=set(keys_of(overrides)))
    if world_size(changed) != world_size(config) and not set(keys_of(overrides)) & set(_BATCH):
        fit_batch(config, changed)
    check_name(changed.name)  # of a folder below `outputs`, and nowhere else
    problems = limit_problems(changed)
    if problems:
        raise ConfigError(problems)
    drifts += _changed_here(config, changed, given=set(keys_of(overrides)), hashed=_hashed(logged))
    return Recreated(changed, tuple(drifts))


def keys_of(overrides: Sequence[str]) -> list[str]:
    """Return the settings that a command line names."""
    return [text.lstrip("+~").partition("=")[0] for text in overrides]


def unread(config: Config) -> set[str]:
    """Return the sections of settings that no step of a run reads."""
    steps = {step.name for step in config.steps}
    if steps == {"infer"}:
        return {"checkpoint", "zero", "offload", "export", "tracking"}
    return set() if "infer" in steps else {"inference"}


def _built(plain: Mapping[str, Any], logged: Logged) -> Config:
    try:
        return from_plain(plain)
    except ConfigError as error:
        told = [f"{problem}" for problem in error.problems]
        raise UserError(
            f"Today's llmsys does not take these settings: {' '.join(told)}",
            where=str(logged.file),
            do="Run it with the code of then: llmsys reproduce RUN --code",
        ) from error


def _known_today(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Drift]]:
    """Leave out settings that are gone, and tell of them and of those that have come."""
    tree, kept, drifts = settings_tree(), deepcopy(dict(config)), []
    then = flat(config)
    for key in sorted(then):
        if tree.knows(key):
            continue
        reach = of_setting(key)
        drifts.append(
            Drift(
                "settings",
                key,
                f"{key} is no setting any more; it was {then[key]!r}",
                reach.effect,
                reach.shows_in,
                then=then[key],
                do="Run it with the code of then: --code",
            )
        )
        kept = _without(kept, (key,))
    defaults = flat(to_plain(Config()))
    missing = [
        key for key in defaults if key not in then and not any(one.startswith(f"{key}.") for one in then)
    ]
    for key in sorted(missing):
        what = f"{key} has come since; its default, {defaults[key]!r}, leaves things as they were"
        drifts.append(Drift("settings", key, what, Effect.NOTHING, now=defaults[key]))
    return kept, drifts


def _changed_here(before: Config, after: Config, *, given: set[str], hashed: set[str]) -> list[Drift]:
    """Tell of each setting that the command line gives another value; files are compared by their content."""
    old, new, drifts = flat(to_plain(before)), flat(to_plain(after)), []
    for key in sorted({*old, *new}):
        was, asked = old.get(key), new.get(key)
        if was == asked or key.startswith("paths."):
            continue
        if key in (*_BATCH, *_TYPES) and key not in given:
            why = "the batch of all ranks stays what it was" if key in _BATCH else "it follows training.dtype"
            what = f"{key} is {asked!r} and was {was!r}: {why}"
            drifts.append(Drift("settings", key, what, MEMORY_ONLY.effect, MEMORY_ONLY.shows_in, was, asked))
            continue
        reach = NOTHING if key in hashed else of_setting(key)
        what = f"{key} is {asked!r} by this command line; it was {was!r}"
        drift = Drift("command line", key, what, reach.effect, reach.shows_in, then=was, now=asked)
        drifts.append(replace(drift, do=f"Leave {key}=... out"))
    return drifts


def _follow_dtype(before: Config, after: Config, *, given: set[str]) -> None:
    """Let types that were settled by the type of the computation follow it when that is changed."""
    old, new = before.training.dtype, after.training.dtype
    if old is new:
        return
    sections = (after.training, after.method.lora)
    for key, section in zip(_TYPES, sections, strict=True):
        name = key.rpartition(".")[2]
        if getattr(section, name) is old and key not in given:
            setattr(section, name, new)


def _hashed(logged: Logged) -> set[str]:
    """Return settings that name files whose content the record knows."""
    known = logged.section("data").get("files") or {}
    keys = {key for role, key in _ROLES.items() if (known.get(role) or {}).get("sha256")}
    if logged.section("model").get("files"):
        keys |= {"model.path", "model.package"}
    return keys


def _found_again(config: Config, logged: Logged) -> Config:
    """Name files by where they were found, where they still are: relative paths began elsewhere."""
    inputs, model, data = logged.section("inputs"), config.model, config.data
    folder = inputs.get("model_folder")
    if model.path is None and model.package is None and _revision(logged) and model.revision is None:
        model.revision = _revision(logged)
    elif _is_there(folder) and (model.path is not None or model.package is not None):
        model.path, model.package = folder, None
    if _is_there(inputs.get("train_file")):
        data.train = inputs["train_file"]
    if _is_there(inputs.get("heldout_file")):
        data.heldout = inputs["heldout_file"]
    if _is_there(inputs.get("prompts_file")):
        config.inference.prompts = inputs["prompts_file"]
    for key in FOLLOWS:
        section, _, name = key.partition(".")
        setattr(getattr(config, section), name, None)
    return config


def _revision(logged: Logged) -> str | None:
    known = logged.section("model").get("revision")
    return known if isinstance(known, str) and known else None


def _is_there(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/") and Path(path).exists()


def _without(plain: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return settings without some of them, named by dotted keys."""
    left = deepcopy(dict(plain))
    for key in keys:
        *sections, name = key.split(".")
        node: Any = left
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(name, None)
    return left
