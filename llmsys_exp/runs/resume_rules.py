"""Which settings may differ when a run goes on, and which would make it another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config

MAY_CHANGE = (
    "name",
    "resume",
    "steps",
    "training.max_steps",
    "training.epochs",
    "training.evaluate_every",
    "training.early_stop_patience",
    "training.early_stop_min_delta",
    "training.bad_steps_allowed",
    "training.log_every",
    "training.gradient_checkpointing",
    "training.checkpointing_cpu",
    "training.expandable_segments",
    "checkpoint",
    "launcher",
    "tracking",
    "gate",
    "paths",
    "hardware.gpus_per_node",
    "hardware.nodes",
    "hardware.memory_gib",
    "hardware.in_use_gib",
    "hardware.host_memory_gib",
    "export",
    "inference",
)
"""Settings and groups of settings that leave the remaining steps as they would have been."""

FOLLOWS = ("training.micro_batch", "training.grad_accum", "training.global_batch")
"""Settings that follow from the number of ranks; their product, the global batch, is checked by itself."""


def may_change(key: str) -> bool:
    """Return whether a dotted setting may be given another value when a run goes on.

    >>> may_change("checkpoint.every"), may_change("training.learning_rate")
    (True, False)
    """
    return any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)


def flat(tree: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Return nested settings as one table of dotted names."""
    table: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{at}.{key}" if at else key
        if isinstance(value, Mapping) and value:
            table |= flat(value, name)
        else:
            table[name] = value
    return table


def fixed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must stay as they are, but for those at their default.

    A later version with more settings thus still takes a run up that was started without them.
    """
    settings, defaults = flat(to_plain(config)), flat(to_plain(Config()))
    if settings["training.grad_accum_dtype"] == settings["training.dtype"]:
        # what `auto` means there: an older version left the word in job.json
        settings["training.grad_accum_dtype"] = defaults["training.grad_accum_dtype"]
    return {
        key: value
        for key, value in settings.items()
        if not may_change(key) and key not in FOLLOWS and value != defaults.get(key)
    }


def fixed_hash(config: Config) -> str:
    """Return a text that changes when a setting changes that must not."""
    text = json.dumps(fixed_settings(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
