"""What the type of a setting cannot say: the range of each number and the words each text may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.config.tree import settings_tree, value_at
from llmsys_exp.errors import UserError, closest

LARGEST_SEED = 2**32 - 1  # what NumPy takes
LARGEST_COUNT = 65_536
LARGEST_LENGTH = 2**20
LARGEST_ELEMENTS = 10**12
LARGEST_GIB = 1_000_000


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`; the ends belong to it unless they are open."""

    low: float
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a number lies in the span; nan and the infinities never do."""
        if not math.isfinite(value):
            return False
        above = value > self.low if self.open_low else value >= self.low
        if self.high is None:
            return above
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"above {self.low:,}" if self.open_low else f"{self.low:,} or more"
        if not (self.open_low or self.open_high):
            return f"{self.low:,} to {self.high:,}"
        low = f"above {self.low:,}" if self.open_low else f"{self.low:,} or more"
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high:,}"


COUNT = Span(1, LARGEST_COUNT)
FROM_ONE, FROM_ZERO, POSITIVE = Span(1), Span(0), Span(0, open_low=True)
SHARE = Span(0, 1)
PORT = Span(1, 65_535)
ELEMENTS = Span(1, LARGEST_ELEMENTS)
MEMORY = Span(0, LARGEST_GIB, open_low=True)

RANGES: dict[str, Span] = {
    "seed": Span(0, LARGEST_SEED),
    "hardware.gpus_per_node": COUNT,
    "hardware.nodes": COUNT,
    "hardware.memory_gib": MEMORY,
    "hardware.in_use_gib": Span(0, LARGEST_GIB),
    "hardware.host_memory_gib": MEMORY,
    "method.lora.r": COUNT,
    "method.lora.alpha": POSITIVE,
    "method.lora.dropout": Span(0, 1, open_high=True),
    "method.freeze.last_layers": COUNT,
    "zero.stage": Span(0, 3),
    "zero.reduce_bucket_size": ELEMENTS,
    "zero.allgather_bucket_size": ELEMENTS,
    "zero.stage3_prefetch_bucket_size": Span(0, LARGEST_ELEMENTS),
    "zero.stage3_param_persistence_threshold": Span(0, LARGEST_ELEMENTS),
    "zero.stage3_max_live_parameters": Span(0, LARGEST_ELEMENTS),
    "zero.stage3_max_reuse_distance": Span(0, LARGEST_ELEMENTS),
    "zero.sub_group_size": ELEMENTS,
    "data.max_length": Span(8, LARGEST_LENGTH),
    "data.limit": FROM_ONE,
    "data.heldout_limit": FROM_ONE,
    "data.heldout_split": Span(0, 1, open_high=True),
    "training.micro_batch": COUNT,
    "training.grad_accum": COUNT,
    "training.global_batch": Span(1, LARGEST_COUNT**2),
    "training.epochs": POSITIVE,
    "training.max_steps": FROM_ONE,
    "training.learning_rate": POSITIVE,
    "training.weight_decay": FROM_ZERO,
    "training.warmup_ratio": SHARE,
    "training.warmup_steps": FROM_ZERO,
    "training.adam_beta1": Span(0, 1, open_high=True),
    "training.adam_beta2": Span(0, 1, open_high=True),
    "training.adam_eps": POSITIVE,
    "training.momentum": Span(0, 1, open_high=True),
    "training.loss_scale": FROM_ZERO,
    "training.initial_scale_power": Span(0, 32),
    "training.evaluate_every": FROM_ONE,
    "training.early_stop_patience": FROM_ONE,
    "training.early_stop_min_delta": FROM_ZERO,
    "training.bad_steps_allowed": FROM_ZERO,
    "checkpoint.every": FROM_ONE,
    "checkpoint.keep_last": FROM_ONE,
    "checkpoint.keep_best": FROM_ZERO,
    "export.shard_gb": POSITIVE,
    "export.gptq.damp": Span(0, 1, open_low=True, open_high=True),
    "export.gptq.rows": FROM_ONE,
    "export.gptq.max_length": Span(8, LARGEST_LENGTH),
    "training.gradient_clipping": FROM_ZERO,
    "training.log_every": FROM_ONE,
    "inference.limit": FROM_ONE,
    "inference.batch_size": COUNT,
    "inference.save_every": FROM_ONE,
    "inference.sampling.max_new_tokens": FROM_ONE,
    "inference.sampling.temperature": FROM_ZERO,
    "inference.sampling.top_p": Span(0, 1, open_low=True),
    "inference.sampling.top_k": FROM_ZERO,
    "inference.compare": FROM_ZERO,
    "inference.sglang.mem_fraction_static": Span(0, 1, open_low=True, open_high=True),
    "inference.sglang.context_length": FROM_ONE,
    "inference.sglang.max_running_requests": COUNT,
    "inference.sglang.chunked_prefill_size": Span(-1, LARGEST_LENGTH),
    "inference.sglang.cuda_graph_max_bs": COUNT,
    "inference.sglang.max_total_tokens": FROM_ONE,
    "inference.sglang.tp_size": COUNT,
    "inference.sglang.dp_size": COUNT,
    "inference.sglang.start_timeout_s": POSITIVE,
    "inference.server.port": PORT,
    "inference.server.request_timeout_s": POSITIVE,
    "inference.server.retries": FROM_ZERO,
    "launcher.timeout_s": POSITIVE,
    "launcher.master_port": PORT,
    "launcher.oom_retries": FROM_ONE,
    "gate.margin_gib": Span(0, LARGEST_GIB),
}

WORDS: dict[str, tuple[Any, ...]] = {
    "method.quantization.kind": ("bnb", "gptq"),
    "method.quantization.bits": (2, 3, 4, 8),
    "method.quantization.quant_type": ("nf4", "fp4"),
    "training.attention": ("sdpa", "eager", "flash_attention_2"),
    "data.score": ("exact_match", "field_f1", "none"),
    "inference.engine": ("transformers", "sglang", "sglang_server"),
    "inference.sglang.kv_cache_dtype": (AUTO, "fp8_e4m3", "fp8_e5m2"),
    "launcher.name": (AUTO, "deepspeed", "torchrun", "local"),
    "export.gptq.bits": (2, 3, 4, 8),
    "export.gptq.group_size": (-1, 32, 64, 128),
}


def limit_problems(config: Config) -> list[UserError]:
    """Name every setting whose value lies outside its range or is none of its words."""
    problems = [_outside(key, value_at(config, key), span) for key, span in RANGES.items()]
    problems += [_no_word(key, value_at(config, key), words) for key, words in WORDS.items()]
    return [problem for problem in problems if problem is not None]


def setting_problem(key: str, value: Any) -> UserError | None:
    """Return what is wrong with the value of one setting by its range or its words."""
    problem = _outside(key, value, RANGES[key]) if key in RANGES else None
    return problem or (_no_word(key, value, WORDS[key]) if key in WORDS else None)


def _outside(key: str, value: Any, span: Span) -> UserError | None:
    if value is None or isinstance(value, (str, bool)) or span.holds(value):
        return None
    auto = ", or auto" if settings_tree().takes_auto(key) else ""
    return UserError(f"{key} is {value}; it must be {span}{auto}")


def _no_word(key: str, value: Any, words: tuple[Any, ...]) -> UserError | None:
    if value in words:
        return None
    near = closest(str(value), [str(word) for word in words])
    hint = f"Did you mean {near}?  " if near else ""
    return UserError(f"{key} is {value!r}", do=f"{hint}Known: {', '.join(map(str, words))}")
