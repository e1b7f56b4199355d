"""Configurations for other tools, from a planned one of ours: what is written, what has no counterpart."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.importers.writers.exported import Exported

WRITERS = {
    "llamafactory": ("LLaMA-Factory's training YAML, with its ds_config.json and dataset_info.json", ".yaml"),
    "ds": ("exactly the ds_config.json that a run of llmsys gives DeepSpeed", ".json"),
    "sh": ("a script for DeepSpeed-Chat's step 1", ".sh"),
}
"""Name, as `--to` takes it -> what is written, and the ending of its main file."""


def export(config: Config, to: str, path: Path) -> Exported:
    """Say a planned configuration with the words of another tool; nothing is written yet.

    Args:
        config: a configuration without `auto`.
        to: one of `WRITERS`.
        path: the main file; what goes beside it is named after it.

    Raises:
        UserError: for an unknown name, and for what the other tool does not do at all.
    """
    if Step.train not in config.steps:
        raise UserError("The experiment trains nothing", where=f"steps={[one.value for one in config.steps]}")
    if to not in WRITERS:
        raise unknown_name("format to write", to, list(WRITERS), where="--to")
    write: Callable[[Config, Path], Exported] = import_module(f"llmsys_exp.importers.writers.{to}").write
    return write(config, path)
