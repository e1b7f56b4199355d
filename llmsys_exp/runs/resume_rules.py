"""Which settings may differ when a run goes on, and which would make it another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

INFERENCE_MAY_CHANGE = (
    "resume",
    "launcher",
    "tracking",
    "gate",
    "paths",
    "hardware",
    "inference.batch_size",
    "inference.order",
    "inference.save_every",
    "inference.compare",
    "inference.sglang.python",
    "inference.sglang.mem_fraction_static",
    "inference.sglang.context_length",
    "inference.sglang.max_running_requests",
    "inference.sglang.chunked_prefill_size",
    "inference.sglang.cuda_graph_max_bs",
    "inference.sglang.max_total_tokens",
    "inference.sglang.tp_size",
    "inference.sglang.dp_size",
    "inference.sglang.attention_backend",
    "inference.sglang.sampling_backend",
    "inference.sglang.schedule_policy",
    "inference.sglang.arguments",
    "inference.sglang.start_timeout_s",
    "inference.server",
)
"""Settings of an inference run that change its speed and not what is asked and answered."""

FOLLOWS = ("training.micro_batch", "training.grad_accum", "training.global_batch")
"""Settings that follow from the number of ranks; their product, the global batch, is checked by itself."""


def may_change(key: str, allowed: Sequence[str] = MAY_CHANGE) -> bool:
    """Return whether a dotted setting may be given another value when a run goes on.

    >>> may_change("checkpoint.every"), may_change("training.learning_rate")
    (True, False)
    """
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


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


def fixed_settings(config: Config, allowed: Sequence[str] = MAY_CHANGE) -> dict[str, Any]:
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
        if not may_change(key, allowed) and key not in FOLLOWS and value != defaults.get(key)
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name each of two runs' fixed settings that differs, with its old and its new value."""
    defaults = flat(to_plain(Config()))
    found = []
    for key in sorted({*before, *after}):
        was, asked = (values.get(key, defaults.get(key)) for values in (before, after))
        if asked != was:
            found.append(f"{key} ({was} -> {asked})")
    return found
