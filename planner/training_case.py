"""A training job as the planner sees it. `parsing` reads one from the case format."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from planner.architecture.spec import Architecture


class Method(Enum):
    """What is trained."""

    full = "full"
    freeze = "freeze"
    lora = "lora"
    qlora = "qlora"


@dataclass(frozen=True)
class Lora:
    """Adapters as peft makes them."""

    r: int = 8
    target_modules: str | tuple[str, ...] = "all-linear"
    dropout: float = 0.0
    adapter_dtype: str = "bf16"
    use_dora: bool = False
    use_rslora: bool = False
    """Another scale; no memory."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained whole beside the adapters: embed_tokens, lm_head."""
    train_base: bool = False
    """DeepSpeed-Chat's way: the adapters and every other weight are trained."""


@dataclass(frozen=True)
class Quantization:
    """A quantised base: bitsandbytes (`bnb`), or GPTQ in groups of `group_size` inputs (-1: all of them)."""

    kind: str = "bnb"
    bits: int = 4
    group_size: int = 128
    quant_type: str = "nf4"
    double_quant: bool = True
    prepare_for_kbit_training: bool = True
    head: bool = False
    """The output layer is quantised too (LitGPT)."""
    keeps_inputs: bool = False
    """Products keep their input as an attribute of the graph (bitsandbytes before 0.43.2)."""
    unpacked_dtype: str | None = None
    """Type that weights are unpacked to before they are cast to `dtype`; None: `dtype` itself."""


@dataclass(frozen=True)
class Fsdp:
    """Settings of torch's `fully_shard`. Defaults: no mixed precision, blocks reshard after forward."""

    fp32_params: bool = False
    """Shards in fp32, gathered in `dtype` (`MixedPrecisionPolicy.param_dtype`)."""
    reduce_dtype: str | None = None
    """Type in which gradients travel; None: that of the gathered weights."""
    reshard_after_forward: bool = True
    sync_each_batch: bool = True
    """Reduce gradients in every micro-batch; if not (`no_sync`), they wait whole for the last one."""
    foreach: bool = False
    """Step all tensors at once. Torch does so of itself for plain tensors only."""


@dataclass(frozen=True)
class ZeroSettings:
    """The part of DeepSpeed's `zero_optimization` that moves memory. Counts are elements.

    Defaults: DeepSpeed 0.19.8 `runtime/zero/config.py`. `overlap_comm` None means DeepSpeed's own
    default: on at stage 3, off below.
    """

    overlap_comm: bool | None = None
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    stage3_gather_16bit_weights_on_model_save: bool = False
    memory_efficient_linear: bool = True
    """DeepSpeed's own linear function at stage 3, which keeps the input of frozen weights too."""
    offload_ratio: float = 1.0
    """Share of the optimizer's sub-groups that is offloaded (stage 3)."""


@dataclass(frozen=True)
class Checkpointing:
    """How activations are checkpointed where they are: transformers' two ways, or DeepSpeed's."""

    kind: str = "non_reentrant"
    cpu: bool = False
    """DeepSpeed's `cpu_checkpointing`: the kept inputs rest in main memory."""

    @property
    def reenters(self) -> bool:
        """Whether backward runs inside an autograd function, which holds outputs and gradients."""
        return self.kind != "non_reentrant"


@dataclass(frozen=True)
class Calibration:
    """What was measured on one machine, in the place of constants of `data/`; None: the constant holds."""

    context_gib: float | None = None
    after_context_gib: float | None = None
    nccl_gib: float | None = None
    speed_factor: float | None = None
    """Measured over forecast seconds of a step."""
    source: str = ""
    """Where the figures come from, for the notes of a forecast."""


LIGER_KERNELS = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")


@dataclass(frozen=True)
class TrainingCase:
    """One training job. `micro_batch`, `seq_len` and `grad_accum` are per GPU."""

    architecture: Architecture
    method: Method
    world_size: int = 1
    zero_stage: int = 0
    offload_optimizer: str = "none"
    offload_param: str = "none"
    micro_batch: int = 1
    seq_len: int = 512
    grad_accum: int = 1
    gradient_checkpointing: bool = False
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    attention: str = "sdpa"
    dtype: str = "bf16"
    engine: str = "deepspeed"
    optimizer: str = "deepspeed_adamw"
    grad_accum_dtype: str | None = None
    """Type in which gradients are accumulated; None: that of the weights."""
    loss: str = "stock"
    liger: bool = False
    liger_kernels: tuple[str, ...] = LIGER_KERNELS
    padded: bool = False
    packed: bool = False
    """Several documents in a row, told apart by their positions."""
    logits_to_keep: int = 0
    """Positions of each sequence that logits are made of; 0: all (alignment jobs)."""
    sequence_parallel: int = 1
    """Ranks that share one sequence (Ulysses)."""
    outputs_kept: bool = False
    expandable_segments: bool = False
    memory_limit_bytes: int | None = None
    device: str = "h200"
    freeze_last_layers: int = 0
    lora: Lora | None = None
    quantization: Quantization | None = None
    zero: ZeroSettings = field(default_factory=ZeroSettings)
    fsdp: Fsdp = field(default_factory=Fsdp)
    attention_code: str = "transformers"
    """Whose attention: LitGPT's projects at once, builds no mask and repeats keys for each query head."""
    calibration: Calibration | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank."""
        return self.micro_batch * self.seq_len // self.sequence_parallel

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced while backward goes on."""
        given = self.zero.overlap_comm
        return self.zero_stage == 3 if given is None else given

    @property
    def masked(self) -> bool:
        """Whether attention gets a mask of its own for each row of the batch."""
        return self.padded or self.packed

    def fuses(self, kernel: str) -> bool:
        """Whether a Liger kernel takes the place of the stock code."""
        return self.liger and kernel in self.liger_kernels
