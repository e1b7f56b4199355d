"""Where a job runs: which machines, which of their GPUs, and which launcher starts it there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.launch.gpus import as_indices, installed_cards, machine_has_gpus, pick_gpus
from llmsys_exp.launch.nodes import HOSTFILE, LOCALHOST, Nodes, find_nodes, is_this_machine
from llmsys_exp.launch.ports import free_port, is_free


@dataclass(frozen=True)
class Place:
    """Machines, GPUs of each as CUDA_VISIBLE_DEVICES names them, and the port where ranks meet."""

    nodes: Nodes
    gpus: tuple[str, ...]
    port: int


def choose_launcher(config: Config) -> tuple[str, str]:
    """Return the launcher for `launcher.name=auto`, and why."""
    if config.launcher.hostfile is not None and config.hardware.nodes > 1:
        if shutil.which("pdsh"):
            return "deepspeed", "starts the machines of a hostfile through pdsh"
        return (
            "torchrun",
            "starts the machines of a hostfile over ssh; pdsh, for DeepSpeed's runner, is missing",
        )
    if config.hardware.nodes > 1:
        return "torchrun", "one agent on each node, started by Slurm"
    if config.hardware.gpus_per_node == 1 and config.launcher.hostfile is None:
        return "local", "one process needs no launcher"
    if config.launcher.hostfile is not None:
        return "deepspeed", "reads the hostfile"
    return "torchrun", "starts sooner than DeepSpeed's runner and holds a port of its own"


def find_place(config: Config, *, device: str, env: Mapping[str, str]) -> Place:
    """Find machines, GPUs and a port for a settled configuration.

    Raises:
        UserError: when there are fewer than the job needs.
    """
    nodes = find_nodes(config, env)
    gpus = () if device == "cpu" else _gpus(config, nodes, env)
    return Place(nodes, gpus, _port(config, nodes))


def _gpus(config: Config, nodes: Nodes, env: Mapping[str, str]) -> tuple[str, ...]:
    count, asked = config.hardware.gpus_per_node, config.launcher.gpus
    if nodes.source == HOSTFILE and not any(is_this_machine(host) for host in nodes.hosts):
        # what is visible here says nothing about them
        return pick_gpus(count, asked=asked, env={}, cards=None)
    cards = installed_cards()
    if cards is None and not machine_has_gpus():
        raise UserError(
            "This machine has no GPU",
            where=f"hardware.gpu={config.hardware.gpu}",
            do="Run it where the GPU is, or set hardware=cpu; `llmsys plan` needs none",
        )
    gpus = pick_gpus(count, asked=asked, env=env, cards=cards)
    if config.launcher.name == "deepspeed":
        # its runner knows numbers only; a slice has none and is refused there
        return as_indices(gpus, cards) or gpus
    return gpus


def _port(config: Config, nodes: Nodes) -> int:
    asked = config.launcher.master_port
    if asked is None:
        return free_port()
    here = nodes.master_addr == LOCALHOST or is_this_machine(nodes.master_addr)
    if here and not is_free(asked):
        raise UserError(
            f"Port {asked} is in use on this machine",
            where="launcher.master_port",
            do="Name another, or leave it out: a free one is found for each job",
        )
    return asked
