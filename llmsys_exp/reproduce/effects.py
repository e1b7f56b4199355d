"""What a setting, a package or a part of our code can change in a run: tables, and a rule for the rest.

A setting or a piece of code that no table knows counts as one that changes numbers: nothing is called
harmless by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmsys_exp.reproduce.drift import (
    ALL_NUMBERS,
    ANSWERS,
    EVALUATION,
    FIRST,
    FORECAST,
    LATER,
    LENGTH,
    MEMORY,
    PARAMETERS,
    RATE,
    SPEED,
    TOKENS,
    WEIGHTS,
    Effect,
)


@dataclass(frozen=True)
class Reach:
    """What something may change, and where that shows."""

    effect: Effect
    shows_in: tuple[str, ...] = ()


_LATER = (LATER, EVALUATION, WEIGHTS)
NOTHING = Reach(Effect.NOTHING)
FORECAST_ONLY = Reach(Effect.NOTHING, (FORECAST,))
"""The settings of then are run, whatever a planner of today would choose."""
SPEED_ONLY = Reach(Effect.SPEED, (SPEED,))
MEMORY_ONLY = Reach(Effect.MEMORY, (MEMORY, FORECAST, SPEED))
NUMBERS = Reach(Effect.NUMBERS, ALL_NUMBERS)
LOSSES = Reach(Effect.NUMBERS, (FIRST, *_LATER))
UPDATES = Reach(Effect.NUMBERS, _LATER)
ROWS = Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS))
SHAPE = Reach(Effect.NUMBERS, (FIRST, *_LATER, PARAMETERS, MEMORY, FORECAST, ANSWERS))
SHARDING = Reach(Effect.NUMBERS, (*_LATER, MEMORY, FORECAST))
ASKED = Reach(Effect.NUMBERS, (ANSWERS,))
HELD_OUT = Reach(Effect.NUMBERS, (EVALUATION,))
KNOWN_LENGTH = Reach(Effect.NUMBERS, (LENGTH, RATE, *_LATER))

SETTINGS: tuple[tuple[str, Reach], ...] = (
    ("name", NOTHING),
    ("resume", NOTHING),
    ("paths", NOTHING),
    ("gate", NOTHING),
    ("tracking", NOTHING),
    ("checkpoint", SPEED_ONLY),
    ("export.shard_gb", NOTHING),
    ("export", Reach(Effect.NUMBERS, (WEIGHTS, ANSWERS))),
    ("launcher.env", NUMBERS),
    ("launcher.python", NUMBERS),
    ("launcher.on_oom", Reach(Effect.NUMBERS, _LATER)),
    ("launcher", NOTHING),
    ("seed", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("model.id", NOTHING),
    ("model", SHAPE),
    ("hardware.gpus_per_node", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("hardware.nodes", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("hardware.gpu", Reach(Effect.NUMBERS, (FIRST, *_LATER, ANSWERS, MEMORY, FORECAST))),
    ("hardware", Reach(Effect.MEMORY, (FORECAST,))),
    ("method.lora.dropout", LOSSES),
    ("method.lora.alpha", UPDATES),
    ("method.lora.use_rslora", UPDATES),
    ("method", Reach(Effect.NUMBERS, (*_LATER, PARAMETERS, MEMORY, FORECAST))),
    ("zero", SHARDING),
    ("offload", SHARDING),
    ("data.name", NOTHING),
    ("data.cache", SPEED_ONLY),
    ("data.preview", NOTHING),
    ("data.heldout", HELD_OUT),
    ("data.heldout_limit", HELD_OUT),
    ("data.score", HELD_OUT),
    ("data.max_length", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, MEMORY, FORECAST))),
    ("data.template", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("data.system", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("data", ROWS),
    ("training.dtype", Reach(Effect.NUMBERS, (FIRST, *_LATER, ANSWERS, MEMORY, FORECAST))),
    ("training.micro_batch", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, MEMORY, FORECAST))),
    ("training.grad_accum", ROWS),
    ("training.global_batch", ROWS),
    ("training.epochs", KNOWN_LENGTH),
    ("training.max_steps", KNOWN_LENGTH),
    ("training.learning_rate", Reach(Effect.NUMBERS, (RATE, *_LATER))),
    ("training.warmup_ratio", Reach(Effect.NUMBERS, (RATE, *_LATER))),
    ("training.warmup_steps", Reach(Effect.NUMBERS, (RATE, *_LATER))),
    ("training.scheduler", Reach(Effect.NUMBERS, (RATE, *_LATER))),
    ("training.attention", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("training.liger", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("training.liger_kernels", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("training.loss", Reach(Effect.NUMBERS, (FIRST, *_LATER, MEMORY, FORECAST))),
    ("training.deterministic", LOSSES),
    ("training.gradient_checkpointing", MEMORY_ONLY),
    ("training.checkpointing", MEMORY_ONLY),
    ("training.checkpointing_cpu", MEMORY_ONLY),
    ("training.expandable_segments", MEMORY_ONLY),
    ("training.optimizer", SHARDING),
    ("training.log_every", Reach(Effect.NUMBERS, (LENGTH,))),
    ("training.evaluate", HELD_OUT),
    ("training.evaluate_every", HELD_OUT),
    ("training.early_stop_patience", Reach(Effect.NUMBERS, (LENGTH, EVALUATION, WEIGHTS))),
    ("training.early_stop_min_delta", Reach(Effect.NUMBERS, (LENGTH, EVALUATION, WEIGHTS))),
    ("training", UPDATES),
    ("inference.save_every", NOTHING),
    ("inference.compare", NOTHING),
    ("inference", ASKED),
    ("steps", Reach(Effect.NUMBERS, (WEIGHTS, ANSWERS, EVALUATION))),
)
"""Setting or group of settings -> what it may change; the first entry that holds a setting counts."""

PACKAGES: tuple[tuple[str, Reach], ...] = (
    ("torch", SHAPE),
    ("triton", SHAPE),
    ("nvidia-", SHAPE),
    ("numpy", ROWS),
    ("transformers", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS, MEMORY))),
    ("tokenizers", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("jinja2", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("sentencepiece", Reach(Effect.NUMBERS, (FIRST, *_LATER, TOKENS, ANSWERS))),
    ("datasets", ROWS),
    ("pyarrow", ROWS),
    ("pandas", ROWS),
    ("deepspeed", SHARDING),
    ("accelerate", SHARDING),
    ("peft", LOSSES),
    ("liger-kernel", LOSSES),
    ("flash-attn", LOSSES),
    ("bitsandbytes", SHAPE),
    ("gptqmodel", SHAPE),
    ("safetensors", Reach(Effect.NUMBERS, (FIRST, *_LATER))),
    ("sglang", ASKED),
    ("sgl-kernel", ASKED),
    ("flashinfer", ASKED),
    ("llmsys-exp", NUMBERS),
    ("hydra-core", NOTHING),
    ("omegaconf", NOTHING),
    ("psutil", NOTHING),
    ("ninja", NOTHING),
    ("aiohttp", SPEED_ONLY),
    ("uvloop", SPEED_ONLY),
)
"""Distribution, or how its name begins -> what another version of it may change. Others: nothing, for no
worker computes with them."""

CODE: tuple[tuple[str, Reach], ...] = (
    ("llmsys_exp/workers/data/", ROWS),
    ("llmsys_exp/workers/inference/", ASKED),
    ("llmsys_exp/workers/engines/", ASKED),
    ("llmsys_exp/workers/generation.py", ASKED),
    ("llmsys_exp/workers/scores.py", HELD_OUT),
    ("llmsys_exp/workers/training/", Reach(Effect.NUMBERS, (FIRST, *_LATER, RATE, LENGTH, MEMORY))),
    ("llmsys_exp/workers/methods/", SHAPE),
    ("llmsys_exp/workers/models/", SHAPE),
    ("llmsys_exp/workers/export/", Reach(Effect.NUMBERS, (WEIGHTS, ANSWERS))),
    ("llmsys_exp/workers/", NUMBERS),
    ("llmsys_exp/launch/", Reach(Effect.NUMBERS, (*_LATER, MEMORY))),
    ("llmsys_exp/plan/", Reach(Effect.MEMORY, (FORECAST,))),
    ("planner/", FORECAST_ONLY),
    ("llmsys_exp/config/", NUMBERS),
    ("llmsys_exp/inputs/", ROWS),
    ("llmsys_exp/jobs/", NUMBERS),
    ("llmsys_exp/runs/measured.py", Reach(Effect.MEMORY, (MEMORY,))),
    ("llmsys_exp/", NOTHING),
    ("conf/", NOTHING),
    ("experiments/", NOTHING),
    ("docs/", NOTHING),
    ("tests/", NOTHING),
    ("benchmarks/", NOTHING),
    ("scripts/", NOTHING),
    (".ci/", NOTHING),
)
"""Path in the repository -> what a change there may change. `conf/` and `experiments/`: the recorded settings
are what is run, and the content of data files is compared by itself."""

_TEXTS = (".md", ".txt", ".png", ".svg", ".toml", ".cfg", ".gitignore", "LICENSE", "Makefile")


def of_setting(key: str) -> Reach:
    """Return what another value of a setting may change.

    >>> of_setting("training.learning_rate").shows_in[0], of_setting("paths.cache").effect.words
    ('learning rate', 'nothing')
    """
    for name, reach in SETTINGS:
        if key == name or key.startswith(f"{name}."):
            return reach
    return NUMBERS


def of_package(name: str) -> Reach:
    """Return what another version of a package may change."""
    for known, reach in PACKAGES:
        # `nvidia-` stands for all libraries of CUDA; `torch` is not `torchvision`
        if name == known or (known.endswith("-") and name.startswith(known)):
            return reach
    return NOTHING


def of_code(path: str) -> Reach:
    """Return what a change of a file of this repository may change."""
    if path.endswith(_TEXTS):
        return NOTHING
    return next((reach for start, reach in CODE if path.startswith(start)), NUMBERS)


def worst(reaches: Sequence[Reach]) -> Reach:
    """Join several: the most serious effect, and all parts in which any of them shows."""
    if not reaches:
        return NOTHING
    shows_in = dict.fromkeys(part for one in reaches for part in one.shows_in)
    return Reach(max(one.effect for one in reaches), tuple(shows_in))
