"""What is done with a trained model: written, quantised, asked."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP007, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Union

from llmsys_exp.config.schema.kinds import AUTO


@dataclass
class GptqConfig:
    """The step `quantize`: GPTQ on the merged model."""

    bits: int = 4
    """Bits per weight: 2, 3, 4 or 8."""
    group_size: int = 128
    """Inputs that share a scale; -1: all."""
    desc_act: bool = False
    """Quantise columns in the order of their activations: better, slower to run."""
    sym: bool = True
    """Symmetric around zero."""
    damp: float = 0.05
    """Share of the mean diagonal that is added to the Hessian."""
    calibration: Optional[str] = None
    """File of rows to calibrate on. None: the training rows."""
    rows: int = 128
    """How many of them."""
    max_length: int = 512
    """Tokens of a row."""


@dataclass
class ExportConfig:
    """What is written of a trained model."""

    shard_gb: float = 5.0
    """Largest file of weights, in GB (1e9 bytes)."""
    gptq: GptqConfig = field(default_factory=GptqConfig)


@dataclass
class SamplingConfig:
    """How the next token is picked."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    """0 picks the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""


@dataclass
class InferenceConfig:
    """Which prompts are answered, and how."""

    engine: str = "transformers"
    """Engine that answers the prompts; `transformers` runs on any machine."""
    prompts: Optional[str] = None
    """File of rows with `instruction` (and `input`): a path, or `shipped:` and a path below experiments/."""
    limit: Optional[int] = None
    """Answer only the first n prompts."""
    batch_size: Union[int, str] = AUTO
    """Prompts per call to the engine."""
    save_every: int = 10
    """Every n-th answer goes to outputs.jsonl."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
