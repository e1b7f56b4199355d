"""What a point takes of a card and of main memory beside other jobs, for those who run several at once."""

from __future__ import annotations

from llmsys_exp.sweeps.gate.margins import most_bytes
from llmsys_exp.sweeps.gate.node import node_bytes
from llmsys_exp.sweeps.gate.playing import Judged
from planner.forecasting import device_extra_bytes
from planner.tables import CPU, constant_bytes
from planner.units import GIB


def share_of(judged: Judged, ranks_per_node: int) -> dict[str, float]:
    """Return `device_gib` of each card, with its context, and `host_gib` of the machine; empty if unknown.

    Estimates are taken at their upper end. Without GPUs all is main memory.
    """
    case = judged.case
    if case is None or judged.where != "gpu":
        return {}
    own = most_bytes(case, judged.needed_bytes) if judged.tier == "estimate" else judged.needed_bytes
    host = node_bytes(case, judged.pair, ranks_per_node)
    if case.device == CPU:
        return {"host_gib": _gib(max(host, ranks_per_node * (own + constant_bytes("cpu_process_rss_gib"))))}
    return {"device_gib": _gib(own + device_extra_bytes(case)), "host_gib": _gib(host)}


def _gib(nbytes: float) -> float:
    return round(nbytes / GIB, 3)
