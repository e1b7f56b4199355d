"""Jobs and requests for tests of the SGLang engines, and the stub that stands in for SGLang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Config, Dtype
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.engines.base import Request
from llmsys_exp.workers.job import Job, Resolved

STUB = Path(__file__).parent.parent / "sglang_stub"
SETTLED = {
    "mem_fraction_static": 0.8, "context_length": 64, "max_running_requests": 16, "chunked_prefill_size": 2048,
    "cuda_graph_max_bs": 8, "kv_cache_dtype": "auto", "tp_size": 1, "dp_size": 1, "schedule_policy": "lpm",
}  # fmt: skip
SHAPE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8}


class Tokenizer:
    """Enough of a tokenizer: one end token, words for tokens."""

    eos_token_id = 2
    chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [len(word) for word in text.split()]


def make_model(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **config}), encoding="utf-8")
    return folder


def make_job(folder: Path, *, device: str = "cuda", adapter: Path | None = None, **settings: Any) -> Job:
    """A job whose model lies in `folder`/model; `settings` go to SGLang's arguments."""
    config = Config()
    config.model.id = "owner/small-model"
    config.training.dtype = Dtype.bf16
    config.inference.sglang.start_timeout_s = 30.0
    resolved = Resolved(
        model_folder=make_model(folder / "model"), train_file=None, heldout_file=None, prompts_file=None,
        world_size=1, device=device, adapter_folder=adapter,
    )  # fmt: skip
    serving = {"arguments": {**SETTLED, **settings}, "python": sys.executable}
    return Job(config=config, plan={}, resolved=resolved, paths=RunPaths(folder), serving=serving)


def requests(*prompts: tuple[int, ...]) -> list[Request]:
    return [
        Request(index=at, ids=ids, text=" ".join("w" * one for one in ids), seed=at)
        for at, ids in enumerate(prompts)
    ]
