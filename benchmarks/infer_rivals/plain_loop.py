"""The course's loop: batches of a fixed size in file order, one call each, the next when the last answer is there.

python -m benchmarks.infer_rivals.plain_loop JOB.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.infer_rivals.job import Job

WARM_UP_TOKENS = 16
Answer = Callable[[list[dict[str, Any]]], int]
"""Answers a batch of rows and returns how many new tokens came that somebody had asked for."""


def main() -> None:
    """Answer all prompts once for each batch size."""
    job, result = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
    began = time.monotonic()
    start = start_sglang if job.engine == "sglang" else start_transformers
    answer, forget, stop = start(job)
    loaded = time.monotonic()
    rows = job.rows()
    # all at once, so that kernels of every size are compiled
    answer([{**row, "max_new_tokens": WARM_UP_TOKENS} for row in rows[: max(job.loop_batches)]])
    warm_s = time.monotonic() - loaded
    told = {"load_s": loaded - began, "warm_up_s": warm_s, "loops": []}
    for size in job.loop_batches:
        forget()
        told["loops"].append(loop(rows, size, answer, limit_s=job.loop_limit_s))
        result.write_text(json.dumps(told), encoding="utf-8")
    stop()


def loop(rows: list[dict[str, Any]], size: int, answer: Answer, *, limit_s: float) -> dict[str, Any]:
    """Answer batch after batch until all are done or the time is up."""
    began, tokens, done = time.monotonic(), 0, 0
    while done < len(rows) and time.monotonic() - began < limit_s:
        batch = rows[done : done + size]
        tokens += answer(batch)
        done += len(batch)
    return {"batch": size, "seconds": time.monotonic() - began, "output_tokens": tokens, "prompts": done}


def start_sglang(job: Job) -> tuple[Answer, Callable[[], Any], Callable[[], Any]]:
    """Start the engine as the course's script does: texts in, texts out."""
    import sglang

    engine = sglang.Engine(model_path=str(job.model_folder), load_format="dummy", random_seed=job.seed,
                           log_level="error",
        dtype=job.engine_dtype, **sglang_names(job.arguments))  # fmt: skip

    def answer(rows: list[dict[str, Any]]) -> int:
        settings = [
            {**job.sampling, "max_new_tokens": row["max_new_tokens"], "ignore_eos": True} for row in rows
        ]
        outputs = engine.generate([row["instruction"] for row in rows], settings)
        return sum(one["meta_info"]["completion_tokens"] for one in outputs)

    return answer, engine.flush_cache, engine.shutdown


def sglang_names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names that the installed release has for them."""
    from sglang.srt.server_args import ServerArgs

    named = dict(arguments)
    if "cuda_graph_max_bs" in named and not hasattr(ServerArgs, "cuda_graph_max_bs"):
        named["cuda_graph_max_bs_decode"] = named.pop("cuda_graph_max_bs")
    return named


def start_transformers(job: Job) -> tuple[Answer, Callable[[], Any], Callable[[], Any]]:
    """Load the model; a batch goes on until its longest answer is done."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.model_folder, padding_side="left")
    dtype = getattr(torch, job.engine_dtype)
    model = AutoModelForCausalLM.from_pretrained(job.model_folder, dtype=dtype).to(job.device)
    torch.manual_seed(job.seed)

    def answer(rows: list[dict[str, Any]]) -> int:
        inputs = tokenizer([row["instruction"] for row in rows], return_tensors="pt", padding=True)
        most = max(row["max_new_tokens"] for row in rows)
        with torch.no_grad():
            output = model.generate(**inputs.to(job.device), do_sample=True, temperature=job.temperature,
                                    top_p=job.top_p, top_k=0, max_new_tokens=most, min_new_tokens=most,
                                    pad_token_id=tokenizer.pad_token_id)  # fmt: skip
        tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return sum(row["max_new_tokens"] for row in rows)

    return answer, lambda: None, lambda: None


if __name__ == "__main__":
    main()
