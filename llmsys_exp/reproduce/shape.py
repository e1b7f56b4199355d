"""Are the inner parts of a record of the kind that they should be? A record may have been edited by hand.

`runs.migrate` looks at the outermost keys; this goes as deep as `llmsys reproduce` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import UserError

_NUMBER = (int, float)
SHAPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(
        (
            *("environment/packages", "environment/interpreter_of", "environment/variables"),
            *("data/files", "model/files", "records/*", "data/files/*", "model/files/*", "results/*"),
            *("results/train/loss", "results/train/evaluation", "results/train/evaluation/*"),
            *("results/train/speed", "results/train/data", "results/train/data/train"),
            *("results/train/data/heldout", "results/export/weights_sha256", "environment/interpreter_of/*"),
            *("config/model", "config/hardware", "config/method", "config/method/lora", "config/data"),
            *("config/training", "config/launcher", "config/launcher/env", "config/inference"),
            *("config/inference/sglang", "config/inference/sglang/arguments", "config/inference/server"),
            "config/inference/sampling",
        ),
        dict,
    ),
    **dict.fromkeys(("machine/gpus", "measured/rows", "code/left_out", "code/untracked"), list),
    **dict.fromkeys(
        (
            *("code/commit", "code/patch", "code/patch_sha256", "environment/python", "environment/platform"),
            *("inputs/model_folder", "inputs/train_file", "inputs/heldout_file", "inputs/prompts_file"),
            *("inputs/adapter_folder", "inputs/device", "machine/cpu_name", "model/revision", "config/name"),
            *("environment/variables/*", "environment/packages/*"),
            *("data/files/*/sha256", "model/files/*/sha256", "records/*/sha256"),
        ),
        str,
    ),
    **dict.fromkeys(("inputs/world_size", "machine/cpus", "config/training/log_every"), int),
    **dict.fromkeys(
        ("machine/host_memory_bytes", "forecast/peak_allocated_gib", "results/train/steps"), _NUMBER
    ),
}
"""Place in a record -> what stands there where anything does; `*` stands for every key."""


def check_shape(manifest: Mapping[str, Any], where: str) -> None:
    """Refuse a record whose parts are of another kind.

    Raises:
        UserError: naming the first.
    """
    for place, kind in SHAPES.items():
        _check(manifest, place.split("/"), kind, where, "")


def _check(node: Any, path: list[str], kind: type | tuple[type, ...], where: str, at: str) -> None:
    if not isinstance(node, Mapping):
        return  # told of by the place above, or absent
    name, *rest = path
    for key in list(node) if name == "*" else [name]:
        value = node.get(key)
        here = f"{at}.{key}" if at else str(key)
        if rest:
            _check(value, rest, kind, where, here)
        elif value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise UserError(
                f"{here} of the record is {str(value)[:40]!r}, which no llmsys writes there",
                where=where,
                do="Put the file back as llmsys wrote it",
            )
