"""The job that every program gets, as a file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CUDA_ARGUMENTS = {
    "mem_fraction_static": 0.8,
    "context_length": 16384,
    "max_running_requests": 1024,
    "chunked_prefill_size": 8192,
    "cuda_graph_max_bs": 256,
    "schedule_policy": "lpm",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_prefill_cuda_graph": True,
}
"""Arguments of SGLang on the GPU, the same for all; the last four because its kernels there are a trimmed set."""
CPU_ARGUMENTS = {
    "mem_fraction_static": 0.3,
    "context_length": 2048,
    "max_running_requests": 32,
    "max_total_tokens": 8192,
    "chunked_prefill_size": 2048,
    "schedule_policy": "lpm",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_overlap_schedule": True,
    "device": "cpu",
}
"""The same for SGLang on a CPU."""


@dataclass(frozen=True)
class Job:
    """What is asked, and of which engine."""

    work: str
    """Folder for everything that is made: model, prompts, run folders, logs."""
    model: str
    """Row of the planner's model table, or `tiny`."""
    engine: str
    """sglang or transformers."""
    device: str
    """cuda or cpu."""
    prompts: int
    seed: int
    loop_batches: tuple[int, ...]
    loop_limit_s: float
    """A loop begins no further batch after that; its tokens a second then stand for all."""
    median_tokens: float
    spread: float
    most_tokens: int
    arguments: dict[str, Any] = field(default_factory=dict)
    sglang_python: str = sys.executable
    """Interpreter of the environment that holds SGLang."""
    temperature: float = 0.7
    top_p: float = 0.95

    @property
    def model_folder(self) -> Path:
        """Configuration and tokenizer; weights too where transformers loads them."""
        return Path(self.work) / "model"

    @property
    def prompts_file(self) -> Path:
        """Prompts in alpaca format with the number of new tokens of each."""
        return Path(self.work) / "prompts.json"

    @property
    def conversations_file(self) -> Path:
        """The same for SGLang's benchmark: the length of an answer is how many tokens are asked for."""
        return Path(self.work) / "conversations.json"

    @property
    def python(self) -> str:
        """Interpreter of the rivals."""
        return self.sglang_python if self.engine == "sglang" else sys.executable

    @property
    def dtype(self) -> str:
        """Type of weights and compute, by the name that llmsys has for it."""
        return "bf16" if self.device == "cuda" else "fp32"

    @property
    def engine_dtype(self) -> str:
        """The same as torch, SGLang and transformers call it."""
        return {"bf16": "bfloat16", "fp32": "float32"}[self.dtype]

    @property
    def sampling(self) -> dict[str, float]:
        """How tokens are picked, in SGLang's words."""
        return {"temperature": self.temperature, "top_p": self.top_p}

    def rows(self) -> list[dict[str, Any]]:
        """Read the prompts."""
        return json.loads(self.prompts_file.read_text(encoding="utf-8"))

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what `write` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "loop_batches": tuple(data["loop_batches"])})
