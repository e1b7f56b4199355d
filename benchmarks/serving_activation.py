"""Activations of SGLang's prefill chunks and decode steps: forecast on shapes, then measured on one GPU.

    python benchmarks/serving_activation.py forecast FROZEN.jsonl [--python PYTHON_WITH_SGLANG]
    python benchmarks/serving_activation.py measure FROZEN.jsonl OUT.jsonl
    python benchmarks/serving_activation.py table OUT.jsonl [FORECASTS.jsonl]

`forecast` needs no GPU, `measure` nothing of the planner. Each model is a few layers of a real shape with random
weights; its scheduler process notes what is allocated before each pass and at its highest moment, once for the
model and once for the picking of tokens after it. Graphs, overlap and the prefix cache are off, so that a pass is
what was asked for. A lock lets one engine at a time near the GPU; imports run side by side.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.sessions import run_in_session  # noqa: E402 - found by the line above

MODELS = {
    "qwen2_5_7b": ("Qwen2ForCausalLM", 3),
    "llama3_1_8b": ("LlamaForCausalLM", 3),
    "gemma2_9b": ("Gemma2ForCausalLM", 4),
    "qwen3_30b_a3b": ("Qwen3MoeForCausalLM", 2),
    "mixtral_8x7b": ("MixtralForCausalLM", 2),
}
CARD = {"name": "NVIDIA H200", "capability": [9, 0], "total_mib": 143_771}
NEW_TOKENS, RUNNING, CONTEXT = 4, 256, 16_384
CHUNKS = ((8192, 1), (2048, 1), (8192, 8), (8192, 256))
"""Tokens of a prefill pass, and of how many prompts; the last ones run on as a decode step."""
PICKS = ("greedy", "top_p")
OURS = {
    "attention_backend": "triton", "sampling_backend": "pytorch", "dtype": "bfloat16", "context_length": CONTEXT,
    "max_running_requests": RUNNING, "chunked_prefill_size": 8192, "mem_fraction_static": 0.5,
    "max_total_tokens": 65_536, "disable_cuda_graph": True, "disable_prefill_cuda_graph": True,
    "disable_overlap_schedule": True, "disable_radix_cache": True,
}  # fmt: skip
SIDE_BY_SIDE, TIMEOUT_S, LOCK, NOTES, WANTED = 3, 240.0, "SERVING_LOCK", "SERVING_NOTES", "wanted"
PATIENCE_S, GENERATE = 10.0, "GenerateReqInput"


def passes() -> Iterator[dict[str, Any]]:
    """Everything that is played and measured of a model."""
    for picks in PICKS:
        for tokens, requests in CHUNKS:
            yield {"kind": "prefill", "tokens": tokens, "requests": requests, "picks": picks}
        yield {"kind": "decode", "requests": RUNNING, "picks": picks, "seen_tokens": 8192 // RUNNING + 1}


def _order() -> Iterator[dict[str, Any]]:
    """As the engine is asked: two rounds, and several decode steps each; what the last pass left counts."""
    for one in [*passes(), *passes()]:
        yield from [one] * (1 if one["kind"] == "prefill" else NEW_TOKENS - 1)


def _shape(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["kind"], one.get("tokens"), one["requests"], one["picks"]


def forecast(out: Path, python: str) -> None:
    """Freeze what is expected of each model."""
    import planner
    from planner.simulate.serving.request import run_child

    with out.open("x", encoding="utf-8") as lines:
        for model, (architecture, layers) in MODELS.items():
            config = {
                **planner.model_config(model),
                "architectures": [architecture],
                "num_hidden_layers": layers,
            }
            request = {
                "config": config, "card": CARD, "free_bytes": 140 << 30, "workspace_bytes": 32 << 20, "tp_size": 1,
                "backend": "triton", "arguments": OURS, "passes": list(_order()), "resident": {},
            }  # fmt: skip
            said = run_child(request, python=python)
            last = {_shape(one): {k: v for k, v in one.items() if k != "largest"} for one in said["passes"]}
            said["passes"] = [last[_shape(one)] for one in passes()]
            lines.write(json.dumps({"model": model, "config": config, "forecast": said}) + "\n")
            print(model, f"weights {said['weights_bytes'] / 2**20:.1f} MiB", flush=True)


# ---- the measured side: nothing of the planner below


def watch(*args: Any, **kwargs: Any) -> None:
    """A scheduler that waits for the GPU, and notes what each pass allocates."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    lock = os.open(os.environ[LOCK], os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _note_passes(Path(os.environ[NOTES]))
    _gather_requests(Path(os.environ[NOTES]).with_name(WANTED))
    run_scheduler_process(*args, **kwargs)


def _note_passes(file: Path) -> None:
    import torch
    from sglang.srt.model_executor.model_runner import ModelRunner

    forward, sample, rests = ModelRunner.forward, ModelRunner.sample, [0]

    def note(batch: Any, what: str) -> None:
        row = {"what": what, "mode": batch.forward_mode.name, "requests": batch.batch_size,
               "tokens": len(batch.input_ids), "rests_bytes": rests[0],
               "took_bytes": torch.cuda.max_memory_allocated() - rests[0],
               "reserved_bytes": torch.cuda.memory_reserved()}  # fmt: skip
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")

    def noted_forward(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        rests[0] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = forward(self, batch, *args, **kwargs)
        note(batch, "model")
        return out

    def noted_sample(self: Any, logits: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        torch.cuda.reset_peak_memory_stats()
        out = sample(self, logits, batch, *args, **kwargs)
        note(batch, "sampler")
        return out

    ModelRunner.forward, ModelRunner.sample = noted_forward, noted_sample


def _gather_requests(file: Path) -> None:
    """Let the scheduler see as many requests as the file says at once: they arrive one by one."""
    from sglang.srt.managers.scheduler import Scheduler

    process, held, since = Scheduler.process_input_requests, [], [0.0]

    def gathered(self: Any, received: list[Any]) -> Any:
        kept = [one for one in received if GENERATE in type(one).__name__]
        if kept and not held:
            since[0] = time.monotonic()
        held.extend(kept)
        out = process(self, [one for one in received if GENERATE not in type(one).__name__])
        wanted = int(file.read_text(encoding="utf-8")) if file.is_file() else 0
        count = sum(len(getattr(one, "batch", (one,))) for one in held)
        if held and (count >= wanted or time.monotonic() - since[0] > PATIENCE_S):
            ready = held.copy()
            held.clear()
            out = process(self, ready)
        return out

    Scheduler.process_input_requests = gathered


def one(folder: Path) -> None:
    """Start the engine of one model, run all passes, twice: the first time compiles and warms up."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import ServerArgs

    class Watched(Engine):
        run_scheduler_process_func = staticmethod(watch)

    known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "grammar_backend": "none", "random_seed": 1}
    given = {**OURS, **fixed, "log_level": "info"}
    engine = Watched(
        model_path=str(folder), **{name: value for name, value in given.items() if name in known}
    )
    notes = Path(os.environ[NOTES])
    for _ in range(2):
        for picks in PICKS:
            for tokens, requests in CHUNKS:
                with notes.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"picks": picks, "asked": [tokens, requests]}) + "\n")
                fresh = notes.with_name("fresh")  # the scheduler may read at any moment
                fresh.write_text(str(requests), encoding="utf-8")
                fresh.replace(notes.with_name(WANTED))
                ids = [[1 + (row + at) % 1000 for at in range(tokens // requests)] for row in range(requests)]
                how = {"temperature": 0.0} if picks == "greedy" else {"temperature": 0.7, "top_p": 0.95}
                engine.generate(
                    input_ids=ids,
                    sampling_params={**how, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
                )
    (folder / "done").touch()
    engine.shutdown()


def run_one(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one model in a session of its own; whatever is left of it is killed."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
    log, notes = folder / "log.txt", folder / "notes.jsonl"
    environment = {**os.environ, LOCK: str(folder.parent / "gpu.lock"), NOTES: str(notes)}
    command = [sys.executable, __file__, "one", str(folder)]
    if run_in_session(command, log=log, environment=environment, timeout_s=TIMEOUT_S):
        row["timed_out"] = True
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.is_file() else []
    row["notes"] = [json.loads(line) for line in lines]
    row["measured"] = [_measured(row["notes"], wanted) for wanted in passes()]
    if not (folder / "done").is_file():
        row["tail"] = log.read_text(encoding="utf-8", errors="replace")[-2500:]
    return row


def _measured(notes: list[dict[str, Any]], wanted: dict[str, Any]) -> dict[str, Any]:
    """The last passes of this shape: both moments, or nothing where the engine divided its work otherwise."""
    mode = "EXTEND" if wanted["kind"] == "prefill" else "DECODE"
    tokens = wanted.get("tokens", wanted["requests"])
    picks, found = "", {}
    for note in notes:
        picks = note.get("picks", picks)
        alike = (picks, note.get("mode"), note.get("requests"), note.get("tokens"))
        if alike == (wanted["picks"], mode, wanted["requests"], tokens):
            found[f"{note['what']}_bytes"] = note["took_bytes"]
    return {**wanted, **found}


def measure(frozen: Path, out: Path) -> None:
    """Measure every frozen model."""
    rows = _rows(frozen)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        folders = [Path(scratch) / row["model"] for row in rows]
        with out.open("a", encoding="utf-8") as lines:
            for row in pool.map(run_one, rows, folders):
                lines.write(json.dumps(row) + "\n")
                lines.flush()
                print(row["model"], row.get("tail", "ran")[-1500:], flush=True)
    table(out)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def table(file: Path, again: Path | None = None) -> None:
    """Print the highest moment of each pass, measured and forecast (`again`: by later code), and differences."""
    later = {} if again is None else {row["model"]: row["forecast"] for row in _rows(again)}
    print(
        f"{'model':14s} {'pass':30s} {'moment':8s} {'measured MiB':>12s} {'forecast':>10s} {'difference':>10s}"
    )
    offs = []
    for row in _rows(file):
        for said, seen in zip(
            later.get(row["model"], row["forecast"])["passes"], row["measured"], strict=True
        ):
            name = f"{said['kind']} {said.get('tokens', '')} of {said['requests']}, {said['picks']}"
            if "sampler_bytes" not in seen or "model_bytes" not in seen:
                print(f"{row['model']:14s} {name:30s} not seen")
                continue
            moment = max(("model", "sampler"), key=lambda one: seen[f"{one}_bytes"])
            real, expected = (max(one["model_bytes"], one["sampler_bytes"]) / 2**20 for one in (seen, said))
            offs.append(expected / real - 1)
            print(
                f"{row['model']:14s} {name:30s} {moment:8s} {real:12.2f} {expected:10.2f} {offs[-1]:+10.2%}"
            )
    if offs:
        sizes = [abs(one) for one in offs]
        print(f"{len(offs)} passes: mean {statistics.mean(sizes):.2%}, worst {max(sizes):.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("forecast", "measure", "table", "one"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--python", default=sys.executable, help="interpreter that holds SGLang")
    given = parser.parse_args()
    if given.verb == "forecast":
        forecast(given.files[0], given.python)
    elif given.verb == "measure":
        measure(*given.files)
    elif given.verb == "one":
        one(given.files[0])
    else:
        table(*given.files)


if __name__ == "__main__":
    main()
