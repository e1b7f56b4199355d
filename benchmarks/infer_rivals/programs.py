"""The programs as commands, and what each says of itself when it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.infer_rivals import BENCH, LOOP, OURS
from benchmarks.infer_rivals.job import Job

Figures = dict[str, Any]
OFFLINE = ("benchmark/offline_throughput.py", "bench_offline_throughput.py")
"""Where SGLang keeps its offline benchmark: since about 0.5.15, and before."""


@dataclass(frozen=True)
class Program:
    """A command, and how its figures are read from what it wrote."""

    name: str
    command: list[str]
    figures: Callable[[], list[Figures]]
    """One for each measurement; raises OSError, KeyError or ValueError where it wrote none."""


def make_program(name: str, job: Job, *, number: int) -> Program:
    """Return one of the programs; `number` keeps the files of several rounds apart."""
    return {OURS: ours, LOOP: plain_loop, BENCH: sglang_bench}[name](job, number)


def ours(job: Job, number: int) -> Program:
    """`llmsys infer`: configuration, plan, run folder, worker, journal, figures."""
    outputs = Path(job.work) / f"runs{number}"
    command = [
        sys.executable,
        "-m",
        "llmsys_exp.cli.main",
        "infer",
        *overrides(job),
        f"paths.outputs={outputs}",
    ]
    return Program(OURS, command, lambda: [_our_figures(job, outputs)])


def overrides(job: Job) -> list[str]:
    """Return the command line of the run."""
    hardware = "h200" if job.device == "cuda" else "cpu"
    return [
        *("name=infer_speed", f"seed={job.seed}", f"hardware={hardware}", "model=local", "data=alpaca"),
        f"training.dtype={job.dtype}",
        *(f"model.path={job.model_folder}", f"model.id={job.model}", "data.train=null"),
        *(f"inference.engine={job.engine}", f"inference.prompts={job.prompts_file}"),
        # an order by prompts alone: a real run does not know how long its answers get
        *("inference.template=none", "inference.ignore_eos=true", "inference.order=prefix"),
        f"inference.sampling.temperature={job.temperature}",
        *(f"inference.sampling.top_p={job.top_p}", f"inference.sampling.max_new_tokens={job.most_tokens}"),
        *(_sglang_overrides(job) if job.engine == "sglang" else _transformers_overrides(job)),
    ]


def _transformers_overrides(job: Job) -> list[str]:
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # as many as the rivals have
    env = f"+launcher.env.OMP_NUM_THREADS='{threads}'"
    return [f"inference.batch_size={max(job.loop_batches)}", env]


def _sglang_overrides(job: Job) -> list[str]:
    from llmsys_exp.config.schema import SglangConfig

    known = {key: value for key, value in job.arguments.items() if key in SglangConfig.__annotations__}
    others = {key: value for key, value in job.arguments.items() if key not in known}
    known["python"] = job.sglang_python
    settings = [f"inference.sglang.{key}={value}" for key, value in known.items()]
    settings += [f"+inference.sglang.arguments.{key}={str(value).lower()}" for key, value in others.items()]
    return ["model.weights=random", "inference.batch_size=all", *settings]


def _our_figures(job: Job, outputs: Path) -> Figures:
    (folder,) = {path.parent.parent for path in outputs.rglob("results/infer.json")}
    told = json.loads((folder / "results" / "infer.json").read_text(encoding="utf-8"))
    kept = ("time_s", "engine_version", "batches", "order", "retractions", "aborted", "cache_hit_rate",
            "prefill_tokens_per_s", "decode_tokens_per_s", "latency_s", "kv_tokens")  # fmt: skip
    lines = (folder / "generations.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "seconds": told["seconds"],
        "output_tokens": told["new_tokens"],
        "prompts": len({json.loads(line)["index"] for line in lines}),
        "told": {key: told.get(key) for key in kept},
    }


def plain_loop(job: Job, number: int) -> Program:
    """The course's loop, once for each batch size."""
    work = Path(job.work)
    result = work / f"loop{number}.json"
    command = [
        job.python,
        "-m",
        "benchmarks.infer_rivals.plain_loop",
        str(work / "job.json"),
        str(result),
    ]

    def figures() -> list[Figures]:
        told = json.loads(result.read_text(encoding="utf-8"))
        times = {"told": {"time_s": {"load": told["load_s"], "warm_up": told["warm_up_s"]}}}
        return [{**one, **times} for one in told["loops"]]

    return Program(LOOP, command, figures)


def sglang_bench(job: Job, number: int) -> Program:
    """SGLang's offline benchmark on the same conversations; it warms up by itself before it measures."""
    result = Path(job.work) / f"bench{number}.jsonl"
    command = [job.python, "-m", offline_module(job.python), "--model-path", str(job.model_folder)]
    command += [
        "--load-format",
        "dummy",
        "--random-seed",
        str(job.seed),
        *flags({**job.arguments, "dtype": job.engine_dtype}),
    ]
    command += ["--dataset-name", "sharegpt", "--dataset-path", str(job.conversations_file)]
    command += ["--num-prompts", str(job.prompts), "--seed", str(job.seed), "--result-filename", str(result)]
    command += ["--extra-request-body", json.dumps(job.sampling)]

    def figures() -> list[Figures]:
        told = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
        return [{"seconds": told["total_latency"], "output_tokens": told["total_output_tokens"],
                 "prompts": told["successful_requests"], "told": told}]  # fmt: skip

    return Program(BENCH, command, figures)


def flags(arguments: dict[str, Any]) -> list[str]:
    """Return arguments as SGLang's command line takes them."""
    found: list[str] = []
    for key, value in arguments.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is not False and value is not None:
            found += [flag, str(value)]
    return found


def offline_module(python: str) -> str:
    """Return the module of SGLang's offline benchmark; its package is looked at, not imported."""
    look = "from importlib.util import find_spec; print(find_spec('sglang').origin)"
    told = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    folder = Path(told.stdout.strip()).parent
    place = next((one for one in OFFLINE if (folder / one).is_file()), OFFLINE[0])
    return "sglang." + place.removesuffix(".py").replace("/", ".")
