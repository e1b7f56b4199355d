"""Starting workers: one module a launcher, one line in this table."""

from __future__ import annotations

from importlib import import_module

from llmsys_exp.errors import unknown_name
from llmsys_exp.launch.base import Launcher, TrainJob

__all__ = ["LAUNCHERS", "Launcher", "TrainJob", "get_launcher"]

LAUNCHERS = {
    "deepspeed": "llmsys_exp.launch.deepspeed:DeepSpeedLauncher",
    "torchrun": "llmsys_exp.launch.torchrun:TorchrunLauncher",
    "local": "llmsys_exp.launch.local:LocalLauncher",
}


def get_launcher(name: str) -> Launcher:
    """Return the launcher of that name.

    Raises:
        UserError: with the closest name.
    """
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, list(LAUNCHERS), where="launcher.name")
    module, _, attribute = LAUNCHERS[name].partition(":")
    return getattr(import_module(module), attribute)()
