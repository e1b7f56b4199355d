"""GPTQ through llmsys on a model with random weights: what was forecast and what was measured, side by side.

python benchmarks/quantize_memory.py FOLDER [--gpu h200] [--hidden 2048] [--layers 16] [--rows 64] [--length 512]

Makes a model folder, trains an adapter for a few steps, merges, quantises to 4 bits, loads the result and lets
it answer; each as `llmsys` does it. Needs the extra `gptq`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "integration")]


def main() -> None:
    asked = arguments()
    folder = asked.folder.absolute()
    model = folder / "model"
    if not model.is_dir():
        make(model, asked)
    run = trained(folder, model, asked)
    print(json.dumps(figures(run, asked), indent=2))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h200", help="row of the GPU table, or cpu")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--ffn", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    return parser.parse_args()


def make(model: Path, asked: argparse.Namespace) -> None:
    """Write a random Llama of the shape, with the small tokenizer of the tests."""
    import torch
    from tiny_jobs import make_model
    from transformers import AutoConfig, AutoModelForCausalLM

    make_model(model)
    shape = AutoConfig.from_pretrained(model)
    shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers = (
        asked.hidden,
        asked.ffn,
        asked.layers,
    )
    shape.num_attention_heads, shape.num_key_value_heads = asked.hidden // 64, max(1, asked.hidden // 256)
    shape.head_dim = 64
    shape.max_position_embeddings = 4096
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(model)
    # texts are cut into rows of exactly the length that is asked for
    words = ["the", "merged", "model", "is", "rounded", "and", "must", "still", "answer"]
    texts = [" ".join(words[(n + i) % len(words)] for i in range(asked.length)) for n in range(asked.rows)]
    rows = [{"text": text} for text in texts]
    (model.parent / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def trained(folder: Path, model: Path, asked: argparse.Namespace) -> Path:
    """Train, export and quantise in one command; return the run folder."""
    settings = [
        f"hardware={asked.gpu}", "model=local", f"model.path={model}", "method=lora", "name=quantize_memory",
        f"data.train={folder / 'rows.json'}", "data.name=rows", "zero=stage1", f"data.max_length={asked.length}", "data.score=none",
        "steps=[train,export,quantize]", "training.max_steps=2", "training.micro_batch=1",
        "training.learning_rate=1e-3", "training.evaluate=false", f"export.gptq.rows={asked.rows}",
        f"export.gptq.max_length={asked.length}", f"paths.outputs={folder / 'outputs'}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "llmsys_exp", "train", *settings, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return Path(json.loads(done.stdout)["folder"])


def figures(run: Path, asked: argparse.Namespace) -> dict[str, object]:
    """Return forecast and measurement in GiB, and what the model says before and after."""
    from llmsys_exp.config.plain import from_plain
    from llmsys_exp.inputs.weight_files import stored_tensors
    from llmsys_exp.jobs.quantize_gate import gptq_job
    from planner.gptq import forecast_gptq
    from planner.units import gib

    config = from_plain(json.loads((run / "job.json").read_text(encoding="utf-8"))["config"])
    forecast = forecast_gptq(gptq_job(config, stored_tensors(run / "merged")))
    result = json.loads((run / "results" / "quantize.json").read_text(encoding="utf-8"))
    memory = {name: round(gib(size), 4) for name, size in result["memory"].items()}
    return {
        "shape": {key: getattr(asked, key) for key in ("hidden", "ffn", "layers", "rows", "length")},
        "forecast_gib": {
            "device": round(gib(forecast.device_bytes), 4),
            "host": round(gib(forecast.host_bytes), 4),
            "quantised_files": round(gib(forecast.disk["quantised model"]), 4),
            "device_parts": {use: round(gib(size), 4) for use, size in forecast.device.items()},
            "host_parts": {use: round(gib(size), 4) for use, size in forecast.host.items()},
        },
        "measured_gib": memory | {"quantised_files": round(gib(result["weights_bytes"]), 4)},
        "before": result["before"],
        "after": result["after"],
        "seconds": round(result["seconds"], 1),
        "export": json.loads((run / "results" / "export.json").read_text(encoding="utf-8"))["stored"],
    }


if __name__ == "__main__":
    main()
