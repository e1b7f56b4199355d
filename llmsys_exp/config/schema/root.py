"""The whole configuration."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from llmsys_exp.config.schema.data import DataConfig
from llmsys_exp.config.schema.deepspeed import OffloadConfig, ZeroConfig
from llmsys_exp.config.schema.inference import ExportConfig, InferenceConfig
from llmsys_exp.config.schema.kinds import Step
from llmsys_exp.config.schema.method import MethodConfig
from llmsys_exp.config.schema.model import HardwareConfig, ModelConfig
from llmsys_exp.config.schema.running import GateConfig, LauncherConfig, PathsConfig, TrackingConfig
from llmsys_exp.config.schema.training import CheckpointConfig, TrainingConfig


@dataclass
class Config:
    """The whole configuration of one run."""

    name: str = "default"
    """Experiment name; the folder below paths.outputs."""
    seed: int = 1234
    """Seeds Python, NumPy, torch, the data order and sampling."""
    resume: Optional[str] = None
    """Run folder to go on with, from its newest whole checkpoint; its configuration holds."""
    steps: List[Step] = field(default_factory=lambda: [Step.train])
    """What `llmsys train` does, in order: train, export, quantize, infer."""
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
