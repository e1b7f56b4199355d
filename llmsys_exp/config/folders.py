"""Where the shipped YAML lies, in a checkout or inside an installed wheel, and settings that name folders."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError

SHIPPED = "shipped:"
ROOT_CONFIG = "config"


def conf_dir() -> Path:
    """Return the folder of Hydra groups."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "conf", package / "_shipped" / "conf"):
        if (folder / f"{ROOT_CONFIG}.yaml").is_file():
            return folder
    raise UserError(
        "The shipped configuration (folder conf/) is missing",
        where=str(package),
        do="Install the package again, or run from a complete clone",
    )


def experiments_dir() -> Path:
    """Return the folder of shipped experiments and their data."""
    return (conf_dir() / "experiment").resolve()


def shipped_path(text: str) -> Path:
    """Turn `shipped:data/x.json` into a file below experiments/, and any other text into a plain path."""
    if text.startswith(SHIPPED):
        return experiments_dir() / text.removeprefix(SHIPPED)
    return Path(text).expanduser().absolute()


def with_absolute_paths(config: Config) -> Config:
    """Return a copy in which folders that workers open by their setting do not depend on where we are.

    A run is taken up again, and its launch.sh started, from anywhere. A tokenizer that is no folder here is a
    hub id.
    """
    settled = deepcopy(config)
    lora, offload, model = settled.method.lora, settled.offload, settled.model
    if lora.adapter is not None:
        lora.adapter = str(Path(lora.adapter).expanduser().absolute())
    if offload.nvme_path is not None:
        offload.nvme_path = str(Path(offload.nvme_path).expanduser().absolute())
    if model.tokenizer is not None and Path(model.tokenizer).expanduser().is_dir():
        model.tokenizer = str(Path(model.tokenizer).expanduser().absolute())
    return settled
