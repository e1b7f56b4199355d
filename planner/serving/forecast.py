"""What a serving forecast says. Sizes in bytes of one GPU; GiB where it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner.units import gib


def _rounded(nbytes: int) -> float:
    return round(gib(nbytes), 4)


@dataclass(frozen=True)
class ServingForecast:
    """What an SGLang start would show, and how many requests it would run.

    Attributes:
        free_after_start_bytes: free once the pool, the table and the graphs are there.
        activations_bytes, logits_bytes: what running requests take of that.
        concurrent_requests: requests that fit with all of them at full length, over all replicas; None
            without lengths.
        concurrent_requests_mean: the same with requests half-way through their output.
        admitted_requests: fresh ones that the scheduler lets in at once.
        concurrency_mem_fraction_static: smallest fraction for the wanted concurrency (None: no fraction is).
        good_mem_fraction_static: largest that leaves activations, logits and graphs their room (None: none).
        cause, fix: why it does not fit, and the cheapest change.
        simulated: where its code was played: what each pass took, and the largest allocations.
    """

    mem_fraction_static: float
    weights_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    kv_window_tokens: int
    kv_pool_bytes: int
    max_running_requests: int
    request_table_bytes: int
    graphs_bytes: int
    activations_bytes: int
    logits_bytes: int
    engine_reserve_bytes: int
    free_before_weights_bytes: int
    free_after_start_bytes: int
    starts: bool
    minimum_mem_fraction_static: float | None
    good_mem_fraction_static: float | None
    concurrency_mem_fraction_static: float | None
    concurrent_requests: int | None
    concurrent_requests_mean: int | None
    admitted_requests: int | None
    limited_by: str | None
    fits: bool
    label: str
    cause: str | None
    fix: str | None
    gpus: int
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    tier: str = "formula"
    simulated: dict[str, Any] = field(default_factory=lambda: {})

    @property
    def components(self) -> dict[str, int]:
        """Make-up of the memory that is free before the weights; what is left over comes last."""
        parts = {
            "weights": self.weights_bytes,
            "kv_pool": self.kv_pool_bytes,
            "request_table": self.request_table_bytes,
            "graphs": self.graphs_bytes,
            "activations": self.activations_bytes,
            "logits": self.logits_bytes,
        }
        return {**parts, "unused": self.free_before_weights_bytes - sum(parts.values())}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, memory in GiB."""
        sizes = ("weights", "kv_pool", "request_table", "graphs", "activations", "logits", "engine_reserve",
                 "free_before_weights", "free_after_start")  # fmt: skip
        plain = (
            "kv_bytes_per_token", "kv_tokens", "kv_window_tokens", "max_running_requests", "starts",
            "minimum_mem_fraction_static", "good_mem_fraction_static", "concurrency_mem_fraction_static",
            "concurrent_requests", "concurrent_requests_mean", "admitted_requests", "limited_by", "fits",
            "label", "cause", "fix", "gpus",
        )  # fmt: skip
        return {
            "tier": self.tier,
            "mem_fraction_static": self.mem_fraction_static,
            **{f"{name}_gib": _rounded(getattr(self, f"{name}_bytes")) for name in sizes},
            **{name: getattr(self, name) for name in plain},
            "components": {k: _rounded(v) for k, v in self.components.items()},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 4),
            **({"simulated": self.simulated} if self.simulated else {}),
        }


@dataclass(frozen=True)
class GenerationForecast:
    """What one `generate` call of transformers needs on its device.

    Attributes:
        phase: where the highest moment is, `prefill` or `decode`.
        components: make-up of `peak_allocated_bytes`; sums to it.
        device_used_bytes: with the CUDA context and libraries, or the process on the CPU.
        largest_batch: most sequences that fit; None without a limit.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    kv_growth_bytes: int
    prefill_activations_bytes: int
    logits_bytes: int
    peak_allocated_bytes: int
    device_used_bytes: int
    phase: str
    components: dict[str, int] = field(default_factory=lambda: {})
    budget_bytes: int | None = None
    fits: bool | None = None
    label: str | None = None
    largest_batch: int | None = None
    cause: str | None = None
    fix: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    tier: str = "formula"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, memory in GiB."""
        sizes = ("weights", "kv_cache", "kv_growth", "prefill_activations", "logits", "peak_allocated",
                 "device_used")  # fmt: skip
        plain = ("kv_bytes_per_token", "phase", "fits", "label", "largest_batch", "cause", "fix")
        return {
            "tier": self.tier,
            **{f"{name}_gib": _rounded(getattr(self, f"{name}_bytes")) for name in sizes},
            **{name: getattr(self, name) for name in plain},
            "budget_gib": None if self.budget_bytes is None else _rounded(self.budget_bytes),
            "components": {k: _rounded(v) for k, v in self.components.items()},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 4),
        }
