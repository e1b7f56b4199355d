"""Where the shipped YAML lies: beside the packages in a checkout, inside them in an installed wheel."""

from __future__ import annotations

from pathlib import Path

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
