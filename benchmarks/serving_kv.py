"""Forecast KV tokens of SGLang against what the engine reports, and two fractions that must fail, on one GPU.

    python benchmarks/serving_kv.py OUT.jsonl

Three models with random weights, three fractions each, one fraction below the smallest that starts and one that
leaves no room beside the static share. Each start is a process of its own with a time-out. Imports run side by side;
a lock lets one engine at a time near the GPU, as a fraction counts the memory that is free when it starts. CUDA
graphs are off where they do not matter: the pool is sized before they are captured.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.sessions import run_in_session  # noqa: E402 - found by the line above

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
MODELS = ("qwen2_5_7b", "llama3_1_8b", "qwen3_4b")
FRACTIONS = (0.5, 0.7, 0.88)
BELOW, ABOVE = 0.01, 0.006
"""Distance of the fraction that must fail from the smallest that starts, and of the highest from all."""
CONTEXT, RUNNING = 16_384, 256
SIDE_BY_SIDE = 3
TIMEOUT_S = 240.0
LOCK = "SERVING_KV_LOCK"
OURS = {
    "load_format": "dummy", "skip_tokenizer_init": True, "attention_backend": "triton", "sampling_backend": "pytorch",
    "grammar_backend": "none", "disable_prefill_cuda_graph": True, "random_seed": 1, "context_length": CONTEXT,
    "max_running_requests": RUNNING, "enable_metrics": True, "log_level": "info", "dtype": "bfloat16",
}  # fmt: skip


def case_of(
    model: str, fraction: float, *, total_mib: int, version: str, graphs: int | None
) -> dict[str, Any]:
    """The planner's case of a start."""
    import planner

    return {
        "kind": "serve", "engine": "sglang", "engine_version": version, "hf_config": planner.model_config(model),
        "dtype": "bf16", "gpu": {"total_mib": total_mib}, "mem_fraction_static": fraction, "context_length": CONTEXT,
        "max_running_requests": RUNNING, "cuda_graph_max_bs": graphs or 1, "prefill_cuda_graph": False,
        "attention_backend": "triton", "tp_size": 1, "dp_size": 1,
    }  # fmt: skip


def forecast_of(case: dict[str, Any]) -> Any:
    from planner.serving.case import parse_serving_case
    from planner.serving.sglang import forecast_sglang

    return forecast_sglang(parse_serving_case(case))


def total_mib() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def plan(version: str, total: int, models: tuple[str, ...] = MODELS) -> Iterator[dict[str, Any]]:
    """All starts: what is asked for and what is forecast."""
    for model in models:
        for fraction in FRACTIONS:
            yield start_of(model, fraction, expect="starts", version=version, total=total)
    least = forecast_of(case_of(models[0], FRACTIONS[0], total_mib=total, version=version, graphs=None))
    low = round(least.minimum_mem_fraction_static - BELOW, 4)
    yield start_of(models[0], low, expect="fails for want of a pool", version=version, total=total)
    # graphs, a full prefill chunk and top_p over many rows find no room here
    yield start_of(
        models[0], 1 - ABOVE, expect="runs out of memory", version=version, total=total, graphs=RUNNING
    )


def start_of(
    model: str, fraction: float, *, expect: str, version: str, total: int, graphs: int | None = None
) -> dict[str, Any]:
    forecast = forecast_of(case_of(model, fraction, total_mib=total, version=version, graphs=graphs))
    plain = ("kv_tokens", "starts", "fits", "minimum_mem_fraction_static", "good_mem_fraction_static")
    return {
        "name": f"{model} at {fraction:g}", "model": model, "mem_fraction_static": fraction, "expect": expect,
        "graphs": graphs, "engine_version": version, "total_mib": total,
        "forecast": {**{one: getattr(forecast, one) for one in plain}, "weights_gib": forecast.weights_bytes / 2**30,
                     "free_before_weights_gib": forecast.free_before_weights_bytes / 2**30},
    }  # fmt: skip


def gated(*args: Any, **kwargs: Any) -> None:
    """A scheduler that waits for the GPU before it touches it; the lock goes with the process."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    lock = os.open(os.environ[LOCK], os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run_scheduler_process(*args, **kwargs)


def one(file: Path) -> None:
    """Start the engine of one case, run it where asked, and write what it says beside the case."""
    case = json.loads(file.read_text(encoding="utf-8"))
    import sglang
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import ServerArgs

    from llmsys_exp.workers.engines.sglang_host import _on_sigquit, described, release_arguments

    graphs = {"cuda_graph_max_bs": case["graphs"]} if case["graphs"] else {"disable_cuda_graph": True}
    ours = {
        **OURS,
        **graphs,
        "model_path": str(file.parent),
        "mem_fraction_static": case["mem_fraction_static"],
    }
    arguments = release_arguments(ServerArgs, {**ours, **case.get("arguments", {})}, {})

    class Gated(Engine):
        run_scheduler_process_func = staticmethod(gated)

    began = time.perf_counter()
    engine = Gated(**arguments, custom_sigquit_handler=_on_sigquit)
    case["engine"] = described(engine.get_server_info(), sglang.__version__)
    case["start_s"] = round(time.perf_counter() - began, 1)
    if case["graphs"]:
        ids = [[1 + (row + at) % 1000 for at in range(1024)] for row in range(2 * RUNNING)]
        sampling = {"max_new_tokens": 64, "temperature": 0.7, "top_p": 0.95, "ignore_eos": True}
        engine.generate(input_ids=ids, sampling_params=sampling)
        case["ran"] = True
    (file.parent / "result.json").write_text(json.dumps(case), encoding="utf-8")
    engine.shutdown()


def run_one(case: dict[str, Any], folder: Path, python: str) -> dict[str, Any]:
    """Run one start in a session of its own; whatever is left of it is killed."""
    import planner

    shape = planner.model_config(case["model"])
    folder.mkdir()
    shape = {**shape, "architectures": [ARCHITECTURES[shape["model_type"]]]}
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    file, log = folder / "case.json", folder / "log.txt"
    file.write_text(json.dumps(case), encoding="utf-8")
    environment = {**os.environ, LOCK: str(folder.parent / "gpu.lock")}
    command = [python, __file__, "--one", str(file)]
    if run_in_session(command, log=log, environment=environment, timeout_s=TIMEOUT_S):
        case["timed_out"] = True
    return _outcome(case, folder, log)


def _outcome(case: dict[str, Any], folder: Path, log: Path) -> dict[str, Any]:
    from llmsys_exp.workers.engines.sglang_failure import explain

    printed = log.read_text(encoding="utf-8", errors="replace")
    result = folder / "result.json"
    if result.is_file():
        case = json.loads(result.read_text(encoding="utf-8"))
        case["error"] = case["engine"]["kv_tokens"] / case["forecast"]["kv_tokens"] - 1
    else:
        error = explain(printed, case, what="SGLang ended", log=log)
        case["failed"] = {"kind": error.kind, "text": str(error), "tail": printed[-1500:]}
    case["baseline"] = [line for line in printed.splitlines() if "Load weight begin" in line][-1:]
    case["as_forecast"] = _as_forecast(case)
    return case


def _as_forecast(case: dict[str, Any]) -> bool:
    kind = case.get("failed", {}).get("kind")
    if case["expect"] == "starts":
        return kind is None and not case.get("timed_out") and abs(case["error"]) <= 0.01
    wanted = "config" if case["expect"].startswith("fails") else "oom_gpu"
    forecast = case["forecast"]["starts"] if wanted == "config" else case["forecast"]["fits"]
    return kind == wanted and not forecast


def show(case: dict[str, Any]) -> str:
    if "engine" in case:
        engine, forecast = case["engine"], case["forecast"]
        said = (f"forecast {forecast['kv_tokens']:>9,}  engine {engine['kv_tokens']:>9,}  {case['error']:+.2%}  "
                f"weights {forecast['weights_gib']:.2f}/{engine['weights_gib']:.2f} GiB  {case['start_s']} s")  # fmt: skip
    else:
        said = "took too long" if case.get("timed_out") else case["failed"]["text"]
    return (
        f"{'ok ' if case['as_forecast'] else 'NOT'} {case['name']:<22} expected: {case['expect']:<24} {said}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file of results, one JSON line a start")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--python", default=sys.executable, help="interpreter that holds SGLang")
    parser.add_argument("--engine-version", default=None, help="where it is not installed beside us")
    given = parser.parse_args()
    if given.one:
        one(given.out)
        return 0
    cases = list(plan(given.engine_version or metadata.version("sglang"), total_mib()))
    began, fine = time.perf_counter(), True
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        folders = [Path(scratch) / str(number) for number in range(len(cases))]
        with given.out.open("a", encoding="utf-8") as out:
            for case in pool.map(run_one, cases, folders, [given.python] * len(cases)):
                print(show(case), flush=True)
                out.write(json.dumps(case) + "\n")
                out.flush()
                fine &= case["as_forecast"]
    print(f"{len(cases)} starts in {time.perf_counter() - began:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
