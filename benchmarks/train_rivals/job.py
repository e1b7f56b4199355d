"""The job that every rival gets, as a file: one model folder, one set of tokens, one DeepSpeed configuration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is trained, and how. Everything that moves speed or loss is here."""

    work: str
    """Folder for everything that is made: model, data, run folders."""
    model: str
    """Row of the planner's model table, or `tiny`."""
    method: str
    """lora or full."""
    device: str
    """cuda or cpu."""
    micro_batch: int
    max_length: int = 1024
    rows: int = 4096
    seed: int = 7
    max_steps: int = 250
    log_every: int = 10
    lora_rank: int = 16
    ds_config: dict[str, Any] | None = None
    """Exact configuration, the one that llmsys generates for these settings."""

    @property
    def dtype(self) -> str:
        """Weights and compute."""
        return "bf16" if self.device == "cuda" else "fp32"

    @property
    def learning_rate(self) -> float:
        """Constant over all steps."""
        return 5e-4 if self.method == "lora" else 5e-5

    @property
    def lora_alpha(self) -> int:
        """Scale numerator of the adapters."""
        return 2 * self.lora_rank

    @property
    def model_folder(self) -> Path:
        """Configuration, random weights and tokenizer."""
        return Path(self.work) / "model"

    @property
    def rows_file(self) -> Path:
        """The data in alpaca format."""
        return Path(self.work) / "rows.json"

    @property
    def tokens_folder(self) -> Path:
        """The same data as token ids and labels, in the order in which llmsys takes them."""
        return Path(self.work) / "tokens"

    def with_ds_config(self, ds_config: dict[str, Any]) -> Job:
        """Add DeepSpeed's configuration."""
        return replace(self, ds_config=ds_config)

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what `write` wrote."""
        return cls(**json.loads(path.read_text()))
