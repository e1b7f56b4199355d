"""A measured row as the rivals' adapters see it, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.measured import measured_rows

GIB = 1024**3
HALF = ("bf16", "fp16")


class OutOfScope(Exception):
    """The tool says itself that it does not cover this row; the message is the reason."""


@dataclass(frozen=True)
class Row:
    """One measured run. `parameters` counts the base model, tied weights once."""

    id: str
    name: str
    case: dict[str, Any]

    def __getattr__(self, key: str) -> Any:
        """Keys of the case, with the defaults of docs/case-format.md."""
        return self.case.get(key, DEFAULTS[key])

    @property
    def config(self) -> dict[str, Any]:
        return self.case["hf_config"]

    @property
    def family(self) -> str:
        return self.config["model_type"]

    @property
    def targets(self) -> list[str] | str:
        return self.case["lora"]["target_modules"]

    @property
    def offloads(self) -> bool:
        return self.offload_optimizer != "none" or self.offload_param != "none"


DEFAULTS: dict[str, Any] = {
    "method": "full", "world_size": 1, "zero_stage": 0, "offload_optimizer": "none", "offload_param": "none",
    "micro_batch": 1, "seq_len": 512, "grad_accum": 1, "gradient_checkpointing": False, "attention": "sdpa",
    "dtype": "bf16", "optimizer": "deepspeed_adamw", "liger": False, "padded": False, "quantization": None,
    "lora": None, "memory_limit_gib": None,
}  # fmt: skip


@dataclass(frozen=True)
class Rival:
    """One forecast of one tool.

    Attributes:
        name: as printed.
        package: distribution whose version is recorded; empty for a published rule.
        metric: what the tool says it predicts: `allocated`, `reserved` or `process`.
        predict: GiB of one GPU; raises `OutOfScope`.
        version: of a rule, which has no package.
    """

    name: str
    package: str
    metric: str
    predict: Callable[[Row], float]
    version: str = ""


def survivors() -> Iterator[Row]:
    """Measured rows that ran to the end."""
    for row in measured_rows():
        if row["measured"]["status"] == "ok":
            yield Row(row["id"], row["name"], row["case"])


def refuse(**reasons: bool) -> None:
    """Raise `OutOfScope` with every reason that holds. Underscores read as spaces."""
    held = [reason.replace("_", " ") for reason, holds in reasons.items() if holds]
    if held:
        raise OutOfScope("; ".join(held))


def one_gpu_only(row: Row) -> dict[str, bool]:
    """Reasons of a tool for a single GPU that knows no offload, no freezing and no fused loss."""
    return {
        "several_GPUs": row.world_size > 1,
        "offload": row.offloads,
        "part_of_the_layers_trained": row.method == "freeze",
        "Liger": row.liger,
    }
