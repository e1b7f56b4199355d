"""A Ray cluster as a sweep sees it: connected to, or refused in one message; what its nodes offer."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmsys_exp.errors import EXIT_USER, UserError
from llmsys_exp.sweeps.ray.options import RayOptions, require_ray
from llmsys_exp.sweeps.running.size import JobSize
from planner.units import GIB

CONNECT_S = 5.0
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


@contextmanager
def connected(options: RayOptions) -> Iterator[str]:
    """Be a driver of the cluster, and yield its address.

    Raises:
        UserError: where there is none, or one that does not take us.
    """
    require_ray()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    check_port(options.address)
    import ray

    try:
        context = ray.init(
            address=options.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({"include_dashboard": False} if options.address == "local" else {}),
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            "There is no Ray cluster to run on",
            where=f"--ray address={options.address}",
            why=str(error).strip().partition("\n")[0],
            do="Start one with `ray start --head` and give its address, or leave --ray out",
        ) from None
    where = str(context.address_info["address"])
    try:
        yield where
    finally:
        # to say goodbye to a cluster that is gone, Ray waits for it a minute and then ends us in the middle
        if answers(where):
            ray.shutdown()
        else:
            atexit.register(_leave)


def _leave() -> None:
    """End the process before Ray's own clean-up, which crashes where the cluster is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_USER)


def nodes() -> dict[str, dict[str, Any]]:
    """Return what each living node offers, by its id."""
    import ray

    return {one["NodeID"]: one["Resources"] for one in ray.nodes() if one["Alive"]}


def wanted(size: JobSize, options: RayOptions) -> dict[str, Any]:
    """Return what a job asks Ray for; a task's share always lies on one node."""
    asked: dict[str, Any] = {"num_cpus": options.num_cpus or max(1, size.ranks), "num_gpus": size.gpus}
    if options.memory_gib is not None:
        asked["memory"] = options.memory_gib * GIB
    if options.accelerator_type is not None and size.gpus:
        asked["accelerator_type"] = options.accelerator_type
    return asked


def check_sizes(sizes: Mapping[JobSize, int], options: RayOptions) -> None:
    """Refuse a point that no node has room for, even an empty one.

    Raises:
        UserError: naming the point.
    """
    if options.autoscale:
        return
    there = list(nodes().values())
    for size, number in sizes.items():
        needed = _named(wanted(size, options))
        if any(all(one.get(name, 0) >= amount for name, amount in needed.items()) for one in there):
            continue
        most = {name: max((one.get(name, 0) for one in there), default=0) for name in needed}
        raise UserError(
            f"Point {number} needs {_said(needed)} of one node, and no node of this Ray cluster offers that",
            where="--ray",
            why=f"The most that a node has: {_said(most)}",
            do="Ask for less (hardware.gpus_per_node, num_cpus=N), or let it wait for nodes: autoscale=true",
        )


def _named(asked: Mapping[str, Any]) -> dict[str, float]:
    """Return resources by the names under which nodes offer them."""
    needed = {"GPU": asked["num_gpus"], "CPU": asked["num_cpus"], "memory": asked.get("memory", 0)}
    if "accelerator_type" in asked:
        needed[f"accelerator_type:{asked['accelerator_type']}"] = 0.001
    return {name: amount for name, amount in needed.items() if amount}


def _said(amounts: Mapping[str, float]) -> str:
    words = {"GPU": "{:g} GPUs", "CPU": "{:g} cores", "memory": "{:.1f} GiB of memory"}
    told = [
        words[name].format(amount / GIB if name == "memory" else amount) if name in words else name
        for name, amount in amounts.items()
        if amount
    ]
    return " and ".join(told) or "none of it"


def answers(address: str) -> bool:
    """Whether the head of a cluster can be reached."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def check_cluster(address: str) -> None:
    """Refuse to wait for a cluster that is gone.

    Raises:
        UserError: saying how to go on.
    """
    if not (answers(address) or answers(address)):
        raise UserError(
            "The Ray cluster is gone",
            where=address,
            why="Its jobs save a checkpoint and end by themselves",
            do="`llmsys sweep resume` goes on once there is a cluster again, or without one with --ray off",
        )


def check_port(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for two minutes and then end us.

    Raises:
        UserError: naming the address.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            "There is no Ray cluster to run on",
            where=f"--ray address={address}",
            why=f"Nobody answers there: {error}",
            do="`ray start --head` prints the address; without one: address=auto",
        ) from None
