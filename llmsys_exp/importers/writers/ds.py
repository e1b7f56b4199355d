"""`--to ds`: the very ds_config.json that a run would get."""

from __future__ import annotations

import json
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.importers.writers.exported import Exported, Telling
from llmsys_exp.launch.ds_config import MADE_BY_DEEPSPEED, ds_config
from llmsys_exp.plan.case import CPU, world_size


def write(config: Config, path: Path) -> Exported:
    """Return the file; what DeepSpeed does not configure is told."""
    told = Telling(config)
    if config.training.optimizer not in MADE_BY_DEEPSPEED:
        told.lose("training.optimizer", "DeepSpeed does not make it, so the program has to", matters=False)
    told.lose(
        "training.scheduler", "a run of llmsys sets the rate itself", "The program sets it", matters=False
    )
    told.notes.append("model, data, method and length are not part of a ds_config.json")
    return Exported({path: text(config)}, told.unmapped, told.notes)


def text(config: Config) -> str:
    """Return the JSON, as `llmsys train` writes it into the run folder."""
    device = CPU if config.hardware.gpu == CPU else "cuda"
    return json.dumps(ds_config(config, world_size=world_size(config), device=device), indent=2) + "\n"
