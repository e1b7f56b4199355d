"""Every setting there is: one dataclass per Hydra group, one documented field per key.

The same classes check the YAML and the command line (through OmegaConf in the parent process) and give
workers a typed view of `job.json` (plain Python there). A field typed with `str` beside a number takes
the word `auto`: the planner then chooses the value and keeps the reason.

Values are plain; nothing here imports a heavy package.
"""

from __future__ import annotations

from llmsys_exp.config.schema.data import DataConfig
from llmsys_exp.config.schema.deepspeed import OffloadConfig, ZeroConfig
from llmsys_exp.config.schema.inference import (
    ExportConfig,
    GptqConfig,
    InferenceConfig,
    SamplingConfig,
    ServerConfig,
    SglangConfig,
)
from llmsys_exp.config.schema.kinds import (
    AUTO,
    Checkpointing,
    DataFormat,
    Device,
    Dtype,
    GatePolicy,
    GateTier,
    Loss,
    MethodKind,
    Mirror,
    ModelKind,
    OnOom,
    Optimizer,
    PromptOrder,
    Scheduler,
    ServerApi,
    Step,
    Weights,
)
from llmsys_exp.config.schema.method import FreezeConfig, LoraConfig, MethodConfig, QuantizationConfig
from llmsys_exp.config.schema.model import HardwareConfig, ModelConfig
from llmsys_exp.config.schema.root import Config
from llmsys_exp.config.schema.running import GateConfig, LauncherConfig, PathsConfig, TrackingConfig
from llmsys_exp.config.schema.training import CheckpointConfig, TrainingConfig

__all__ = [
    "AUTO",
    "CheckpointConfig",
    "Checkpointing",
    "Config",
    "DataConfig",
    "DataFormat",
    "Device",
    "Dtype",
    "ExportConfig",
    "FreezeConfig",
    "GateConfig",
    "GatePolicy",
    "GateTier",
    "GptqConfig",
    "HardwareConfig",
    "InferenceConfig",
    "LauncherConfig",
    "LoraConfig",
    "Loss",
    "MethodConfig",
    "MethodKind",
    "Mirror",
    "ModelConfig",
    "ModelKind",
    "OffloadConfig",
    "OnOom",
    "Optimizer",
    "PathsConfig",
    "PromptOrder",
    "QuantizationConfig",
    "SamplingConfig",
    "Scheduler",
    "ServerApi",
    "ServerConfig",
    "SglangConfig",
    "Step",
    "TrackingConfig",
    "TrainingConfig",
    "Weights",
    "ZeroConfig",
]
