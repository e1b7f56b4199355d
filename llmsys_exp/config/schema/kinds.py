"""The words that settings may be."""

from __future__ import annotations

from enum import Enum

AUTO = "auto"


class ModelKind(Enum):
    """What kind of network is trained, and so what its data and its loss are."""

    causal_lm = "causal_lm"
    mlp = "mlp"


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
    """Rows of the planner's table of optimizers."""

    auto = "auto"
    deepspeed_adamw = "deepspeed_adamw"
    torch_adamw = "torch_adamw"
    torch_adamw_fused = "torch_adamw_fused"
    adamw_8bit = "adamw_8bit"
    paged_adamw_8bit = "paged_adamw_8bit"
    paged_adamw = "paged_adamw"
    lion = "lion"
    sgd = "sgd"
    sgd_momentum = "sgd_momentum"
    adafactor = "adafactor"


class Scheduler(Enum):
    """Shape of the learning rate over the steps."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class Checkpointing(Enum):
    """Whose activation checkpointing is used."""

    non_reentrant = "non_reentrant"
    reentrant = "reentrant"
    deepspeed = "deepspeed"


class Loss(Enum):
    """How logits and loss are computed."""

    stock = "stock"
    chunked = "chunked"


class DataFormat(Enum):
    """How a row is laid out."""

    auto = "auto"
    alpaca = "alpaca"
    sharegpt = "sharegpt"
    messages = "messages"
    text = "text"
    preference = "preference"


class OnOom(Enum):
    """What happens after a GPU ran out of memory."""

    fail = "fail"
    smaller_batch = "smaller_batch"
    replan = "replan"


class PromptOrder(Enum):
    """In which order prompts go to an engine."""

    auto = "auto"
    file = "file"
    prefix = "prefix"
    length = "length"


class ServerApi(Enum):
    """What a server speaks."""

    native = "native"
    openai = "openai"


class Mirror(Enum):
    """Programs that metrics are sent to as well."""

    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"


class GatePolicy(Enum):
    """What to do with a job that will not fit."""

    off = "off"
    warn = "warn"
    skip = "skip"
    error = "error"


class GateTier(Enum):
    """Who decides on a job whose forecast is near the limit."""

    formula = "formula"
    dryrun = "dryrun"


class Step(Enum):
    """One part of a run."""

    train = "train"
    export = "export"
    quantize = "quantize"
    infer = "infer"
    parallelism = "parallelism"
