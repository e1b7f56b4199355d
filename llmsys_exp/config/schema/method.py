"""What is trained."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional

from llmsys_exp.config.schema.kinds import Dtype, MethodKind


@dataclass
class LoraConfig:
    """Low-rank adapters."""

    r: int = 8
    """Rank of the two adapter matrices."""
    alpha: float = 16
    """Scale numerator: the update is multiplied by alpha / r."""
    dropout: float = 0.0
    """Dropout before the first adapter matrix."""
    targets: Any = "all-linear"
    """`all-linear`, or a list of module names such as [q_proj, v_proj]."""
    adapter_dtype: Dtype = Dtype.auto
    """Type of the adapter weights: fp32, or auto for the compute type. DeepSpeed casts fp32 ones to it below
    stage 3; at stage 3 they stay."""
    use_dora: bool = False
    """Weight-decomposed adapters: a trained magnitude for each output (below ZeRO stage 3)."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r)."""
    modules_to_save: List[str] = field(default_factory=list)
    """Modules trained whole beside the adapters: embed_tokens, lm_head."""
    train_base: bool = False
    """Train every weight of the base as well. (DeepSpeed-Chat trains all but those that have an adapter.)"""
    adapter: Optional[str] = None
    """Folder of an adapter to go on training; its rank, scale and targets hold."""


@dataclass
class FreezeConfig:
    """Partial fine-tuning."""

    last_layers: int = 2
    """Train only the last n transformer layers (and the head when it is not tied)."""
    modules: List[str] = field(default_factory=list)
    """Train only these, in place of `last_layers`: dotted names or whole parts of them, as mlp, layers.3,
    lm_head. The forecast counts every layer from the first that may hold one as trained: an upper end."""


@dataclass
class QuantizationConfig:
    """Quantised base weights, for qlora."""

    kind: str = "bnb"
    """How the base is quantised: bnb (bitsandbytes, while loading) or gptq (the model folder is already)."""
    bits: int = 4
    """Bits per base weight: 4 or 8 (gptq: as the folder says)."""
    quant_type: str = "nf4"
    """4-bit code book: nf4 or fp4."""
    double_quant: bool = True
    """Quantise the block scales too."""
    prepare_for_kbit_training: bool = True
    """Cast what stays unquantised to fp32, as peft's helper of that name does."""


@dataclass
class MethodConfig:
    """How the model is fine-tuned."""

    kind: MethodKind = MethodKind.lora
    """What is trained: every weight, the last layers, adapters, or adapters over a quantised base."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
