"""What `training.deterministic` costs, and what it gives: step times with and without, and whether runs repeat.

    python -m benchmarks.deterministic_cost --out RESULT.jsonl                   on a GPU: LoRA and full, 1B shape
    python -m benchmarks.deterministic_cost --device cpu --steps 6               anywhere, to see that it runs

The same `llmsys train` is started four times for each method, without and with the setting in turn. A step time
is the difference of two lines of metrics.jsonl; the first steps are left out and the median is taken. The ratio
is that of the two medians of one round, the mean of both rounds is told. Whether a pair of runs is equal to the
bit is asked of every loss and gradient norm; where it is not, the worst relative difference by step is told,
which is what the tolerances of docs/reproduce.md have to allow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WARM_STEPS = 3
ROUNDS = 2
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def main() -> None:
    """Run every method and print one line for each."""
    asked = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        for method in asked.methods.split(","):
            found = measure(asked, method, Path(scratch))
            print(_said(found), flush=True)
            if asked.out is not None:
                with asked.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(found) + "\n")


def measure(asked: argparse.Namespace, method: str, scratch: Path) -> dict[str, Any]:
    """Return times, ratio and equality for a method."""
    runs: dict[bool, list[Path]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for deterministic in (False, True):
            runs[deterministic].append(_train(asked, method, scratch, deterministic=deterministic))
    times = {which: [_step_s(folder) for folder in folders] for which, folders in runs.items()}
    ratios = [slow / fast for fast, slow in zip(times[False], times[True], strict=True)]
    manifest = json.loads((runs[True][0] / "manifest.json").read_text(encoding="utf-8"))
    gpus = [card.get("name") for card in manifest["machine"].get("gpus") or [] if card.get("in_run")]
    return {
        "method": method,
        "model": asked.model,
        "ranks": asked.ranks,
        "gpus": gpus,
        "torch": manifest["environment"]["packages"].get("torch"),
        "settings": asked.settings,
        "steps": asked.steps,
        "step_s": {"without": times[False], "with": times[True]},
        "ratio": statistics.mean(ratios),
        "ratios": ratios,
        "peak_bytes": {
            "without": [_peak(folder) for folder in runs[False]],
            "with": [_peak(folder) for folder in runs[True]],
        },
        "equal": {"without": _equal(runs[False]), "with": _equal(runs[True])},
        "apart": {"without": _apart(runs[False]), "with": _apart(runs[True])},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--hardware", default="h200", help="option of the group hardware, on a GPU")
    parser.add_argument("--model", default="llama3_2_1b", help="option of the group model; random weights")
    parser.add_argument("--methods", default="lora,full")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*", help="further KEY=VALUE")
    return parser.parse_args()


def _train(asked: argparse.Namespace, method: str, scratch: Path, *, deterministic: bool) -> Path:
    """Train once and return the run folder."""
    shape = [f"model={asked.model}"]
    hardware = [f"hardware={asked.hardware}"]
    sizes = ["data.max_length=1024", "training.micro_batch=8"]
    if asked.device == "cpu":
        folder = scratch / "shape"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
        shape, hardware = ["model=local", f"model.path={folder}", "model.id=tiny"], ["hardware=cpu"]
        sizes = ["data.max_length=64", "training.micro_batch=4"]
    overrides = [
        *shape,
        *hardware,
        *sizes,
        "model.weights=random",
        f"method={method}",
        "data.packing=true",
        "training.evaluate=false",
        f"training.max_steps={asked.steps}",
        "training.epochs=1000",
        f"hardware.gpus_per_node={asked.ranks}",
        "zero.stage=2" if asked.ranks > 1 else "zero.stage=0",
        f"training.deterministic={str(deterministic).lower()}",
        f"paths.outputs={scratch / 'outputs'}",
        f"paths.cache={scratch / 'cache'}",
        "name=cost",
        *asked.settings,
    ]
    command = [sys.executable, "-m", "llmsys_exp", "train", *overrides, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(overrides)}\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
    return Path(json.loads(done.stdout)["folder"])


def _lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [row for row in map(json.loads, text.splitlines()) if "train/loss" in row]


def _step_s(folder: Path) -> float:
    """Return the median of the time from one logged step to the next, once it is warm."""
    walls = [row["wall_s"] for row in _lines(folder)][WARM_STEPS:]
    return statistics.median(after - before for before, after in itertools.pairwise(walls))


def _peak(folder: Path) -> int | None:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["measured"]["peak_bytes"]


def _figures(folder: Path) -> Iterator[tuple[float, float | None]]:
    for row in _lines(folder):
        yield row["train/loss"], row["grad_norm"]


def _equal(folders: Sequence[Path]) -> bool:
    first, *others = (list(_figures(folder)) for folder in folders)
    return all(one == first for one in others)


def _apart(folders: Sequence[Path]) -> dict[str, float]:
    """Return how far the losses of two runs are apart, relatively: at step 1, and at worst later."""
    one, other = ([loss for loss, _ in _figures(folder)] for folder in folders)
    gaps = [abs(a - b) / abs(a) if a else abs(b) for a, b in zip(one, other, strict=True)]
    return {"first": gaps[0], "worst": max(gaps)}


def _said(found: dict[str, Any]) -> str:
    times = found["step_s"]
    parts = [
        f"{found['method']} on {', '.join(found['gpus']) or 'CPU'}, {found['ranks']} ranks",
        f"step {statistics.mean(times['without']):.4f} s without, {statistics.mean(times['with']):.4f} s with",
        f"ratio {found['ratio']:.3f} ({', '.join(f'{one:.3f}' for one in found['ratios'])})",
    ]
    for which in ("without", "with"):
        apart = found["apart"][which]
        same = "equal to the bit" if found["equal"][which] else "not equal"
        parts.append(
            f"two runs {which}: {same}, losses apart {apart['first']:.1e} at step 1, {apart['worst']:.1e}"
        )
    return "\n  ".join(parts)


if __name__ == "__main__":
    main()
