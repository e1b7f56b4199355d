"""Puts what ranks measured beside the formulas, as rows of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.workers.parallelism import formulas
from llmsys_exp.workers.parallelism.formulas import MICRO_BATCHES, Batch, Memory, Shape

ONE, DATA, PIPELINE, TENSOR = "one rank", "data", "pipeline", "tensor"

Measured = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each scheme what each rank told, in rank order."""


def byte_rows(measured: Measured, shape: Shape, batch: Batch) -> list[dict[str, Any]]:
    """Return bytes that each rank sent in a step: handed to torch, and carried by sockets."""
    return [
        _byte_row(name, rank, told["traffic"], shape, batch)
        for name in (DATA, PIPELINE, TENSOR)
        for rank, told in enumerate(measured[name])
    ]


def memory_rows(measured: Measured, shape: Shape, batch: Batch) -> list[dict[str, Any]]:
    """Return bytes that each rank held in a step."""
    return [
        {
            "scheme": name,
            "rank": rank,
            "formula": _memory(name, rank, shape, batch).to_dict(),
            "measured": told["memory"],
        }
        for name, rows in measured.items()
        for rank, told in enumerate(rows)
    ]


def largest_difference(measured: Measured, name: str) -> float:
    """Return by which share a scheme's losses differ from those of one rank at most."""
    alone = measured[ONE][0]["losses"]
    return max(
        abs(loss / wanted - 1) for loss, wanted in zip(measured[name][0]["losses"], alone, strict=True)
    )


def _byte_row(name: str, rank: int, traffic: Mapping[str, Any], shape: Shape, batch: Batch) -> dict[str, Any]:
    if name == PIPELINE:
        payload = wire = formulas.pipeline_sent_bytes(shape, batch, stage=rank)
    elif name == DATA:
        payload = formulas.data_payload_bytes(shape)
        wire = formulas.ring_bytes(payload, batch.ranks)
    else:
        payload = formulas.tensor_payload_bytes(shape, batch)
        wire = formulas.ring_bytes(payload, batch.ranks)
    return {
        "scheme": name,
        "rank": rank,
        "calls": sum(traffic["calls"].values()),
        "payload": {"formula": payload, "measured": sum(traffic["payload_bytes"].values())},
        "wire": {"formula": wire, "measured": traffic["wire_bytes"]},
    }


def _memory(name: str, rank: int, shape: Shape, batch: Batch) -> Memory:
    if name == PIPELINE:
        cut = replace(batch, micro_batches=MICRO_BATCHES)
        return formulas.pipeline_memory(shape, cut, stage=rank)
    whole = {ONE: formulas.one_rank_memory, DATA: formulas.data_memory, TENSOR: formulas.tensor_memory}
    return whole[name](shape, batch)
