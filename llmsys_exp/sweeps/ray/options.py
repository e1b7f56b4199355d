"""What `--ray` takes: where the cluster is, and what each point takes of it beside its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from llmsys_exp.errors import UserError, unknown_name

_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True)
class RayOptions:
    """Options of `--ray`."""

    address: str = "auto"
    """HOST:PORT of the cluster; `auto`: the one of this machine; `local`: one for this sweep alone."""
    num_cpus: int | None = None
    """Cores of each point; None: one a rank."""
    memory_gib: int | None = None
    """Main memory of each point, as Ray shares it out; None: not asked for."""
    accelerator_type: str | None = None
    """Kind of GPU, as Ray calls it."""
    autoscale: bool = False
    """Let points wait for nodes that are not there yet, in place of refusing them."""


def parse_ray(text: str) -> RayOptions:
    """Read `address=auto,num_cpus=4,memory_gib=32`.

    Raises:
        UserError: for an option that is unknown or has no such value.
    """
    known = [field.name for field in fields(RayOptions)]
    found: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if key not in known:
            raise unknown_name("option of Ray", key, known, where=f"--ray {text}", limit=len(known))
        if not equals or not value:
            raise UserError(f"{key} has no value", where=f"--ray {text}", do=f"Write {key}=VALUE")
        found[key] = _value(key, value, text)
    options = RayOptions(**found)
    if "://" in options.address:
        raise UserError(
            "A sweep is not run through Ray Client",
            where=f"--ray {text}",
            why="Its tasks would end with the connection",
            do="Run it on a node of the cluster with address=auto, or hand it over: "
            "ray job submit --no-wait -- llmsys sweep run ... --ray address=auto",
        )
    return options


def require_ray() -> None:
    """Refuse where Ray is not installed.

    Raises:
        UserError: saying how to install it.
    """
    if find_spec("ray") is None:
        raise UserError(
            "The package ray is not installed", where="--ray", do="Run: pip install 'llmsys-exp[ray]'"
        )


def _value(key: str, value: str, text: str) -> Any:
    if key in ("num_cpus", "memory_gib"):
        if not value.isdigit() or int(value) == 0:
            raise UserError(f"{key}={value} is no whole number above 0", where=f"--ray {text}")
        return int(value)
    if key == "autoscale":
        if value not in _SWITCH:
            raise UserError(f"autoscale={value} is neither true nor false", where=f"--ray {text}")
        return _SWITCH[value]
    return value
