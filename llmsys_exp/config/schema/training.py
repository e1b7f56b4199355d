"""The optimisation, and the checkpoints on the way."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP007, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Union

from llmsys_exp.config.schema.kinds import AUTO, Checkpointing, Dtype, Loss, Optimizer, Scheduler


@dataclass
class TrainingConfig:
    """The optimisation: batch, length, rate, precision."""

    dtype: Dtype = Dtype.auto
    """Weights and compute. fp32 means no mixed precision."""
    micro_batch: Union[int, str] = AUTO
    """Sequences per GPU and forward pass."""
    grad_accum: Union[int, str] = AUTO
    """Micro-batches per optimizer step."""
    global_batch: Optional[int] = None
    """Sequences per optimizer step over all GPUs = micro_batch x grad_accum x GPUs."""
    epochs: float = 1.0
    """Passes over the data, unless max_steps ends the run first."""
    max_steps: Optional[int] = None
    """Optimizer steps at most."""
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    warmup_ratio: float = 0.03
    """Share of the steps over which the learning rate rises."""
    warmup_steps: Optional[int] = None
    """Steps over which the learning rate rises, in place of `warmup_ratio`."""
    scheduler: Scheduler = Scheduler.cosine
    optimizer: Optimizer = Optimizer.auto
    """A row of the planner's table. auto: DeepSpeed's fused AdamW, on the CPU torch's."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    momentum: float = 0.9
    """Of sgd_momentum."""
    gradient_clipping: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    gradient_checkpointing: Union[bool, str] = AUTO
    """Keep only each layer's input and compute the rest again in backward."""
    checkpointing: Checkpointing = Checkpointing.non_reentrant
    """Whose code does it: transformers' with or without re-entrant autograd, or DeepSpeed's."""
    checkpointing_cpu: bool = False
    """Keep the inputs in main memory (with `checkpointing=deepspeed`)."""
    attention: str = "sdpa"
    """Attention implementation of transformers: sdpa, eager or flash_attention_2."""
    liger: bool = False
    """Liger kernels (fused loss, norm, MLP, rotary); needs a GPU."""
    liger_kernels: List[str] = field(default_factory=list)
    """Which of them: rope, rms_norm, swiglu, fused_linear_cross_entropy. Empty: all."""
    loss: Loss = Loss.stock
    """`chunked` makes no fp32 copy of the logits (DeepSpeed's). Liger's fused loss never holds them all."""
    grad_accum_dtype: Dtype = Dtype.auto
    """Type in which DeepSpeed accumulates gradients. auto: the compute type."""
    loss_scale: float = 0.0
    """fp16: 0 scales dynamically, anything else is the fixed scale."""
    initial_scale_power: int = 16
    """fp16: the dynamic scale starts at 2 to this power."""
    expandable_segments: Union[bool, str] = AUTO
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, against fragmentation."""
    deterministic: bool = False
    """The same losses to the bit in every run on the same machine; slower on a GPU (docs/reproduce.md)."""
    evaluate: bool = True
    """Loss and task score on the held-out rows before and after training."""
    evaluate_every: Optional[int] = None
    """Optimizer steps between evaluations in mid-training."""
    early_stop_patience: Optional[int] = None
    """Stop after so many evaluations in a row without a better held-out loss."""
    early_stop_min_delta: float = 0.0
    """By how much a held-out loss must be lower to count as better."""
    bad_steps_allowed: int = 0
    """Steps with a NaN or infinite loss or gradient that are left out before the run stops."""
    log_every: int = 1
    """Optimizer steps between lines of metrics.jsonl."""


@dataclass
class CheckpointConfig:
    """States of training to resume from, below `checkpoints/` of the run folder."""

    every: Optional[int] = None
    """Optimizer steps between checkpoints. None: none but at SIGTERM."""
    keep_last: int = 2
    """How many of the latest are kept."""
    keep_best: int = 0
    """How many of the lowest held-out loss are kept beside them."""
    on_signal: bool = True
    """Save and end when SIGTERM comes (preemption); the run can be resumed."""
