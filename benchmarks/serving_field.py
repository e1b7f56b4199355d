"""Serving forecasts against public figures: stated, forecast, difference, and the median by group.

    python benchmarks/serving_field.py CASES.jsonl

CASES is the file of public cases (kind `infer`). Rows of engines that are not forecast (vLLM) are compared in
what does not depend on the engine: weights and bytes of a token. Where the source's "GB" may mean 1e9 or 2^30
bytes, a forecast inside the range counts as no difference. Shapes of models that the planner does not ship stand
below. Nothing was fitted to these rows.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planner

GIB = 1024**3
CARDS = {"A100": "a100-80gb", "L4": "l4", "RTX 3090": "rtx3090", "V100": "v100-32gb"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def _qwen1(layers: int, hidden: int, heads: int, ffn: int, vocab: int = 151_936) -> dict[str, Any]:
    """Qwen 1 is shaped like Qwen 2 with as many key-value heads as heads (its config says twice the width)."""
    return {"model_type": "qwen2", "num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab,
            "num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": ffn,
            "max_position_embeddings": 8192, "tie_word_embeddings": False}  # fmt: skip


SHAPES = {
    "qwen-1_8b": _qwen1(24, 2048, 16, 5504),
    "qwen-7b": _qwen1(32, 4096, 32, 11_008),
    "qwen-14b": _qwen1(40, 5120, 40, 13_696, 152_064),
    "qwen-72b": _qwen1(80, 8192, 64, 24_576, 152_064),
    "chatglm2-6b": {**_qwen1(28, 4096, 32, 13_696, 65_024), "num_key_value_heads": 2},
    "qwq-32b": {**planner.model_config("qwen2_5_32b"), "max_position_embeddings": 131_072},
    "llama-3.1-8b": planner.model_config("llama3_1_8b"),
    "meta-llama-3-70b": planner.model_config("llama3_1_70b"),
    **{f"qwen2.5-{size}": planner.model_config(f"qwen2_5_{size.replace('.', '_')}")
       for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")},
}  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [row for row in lines if row["kind"] == "infer"]


def shape_of(row: dict[str, Any]) -> dict[str, Any] | None:
    name = re.sub(r"-(instruct|chat)", "", row["model"].split("/")[-1].lower())
    return next((SHAPES[key] for key in sorted(SHAPES, key=len, reverse=True) if name.startswith(key)), None)


def generate_case(row: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """The `generate` call of a row; lengths come from its text, else all but one token were generated."""
    given = re.search(r"input (\d+), (\d+) new", row.get("other", ""))
    encoded = "encoding" in row.get("other", "")
    tokens = row["seq_len"]
    lengths = (int(given[1]), int(given[2])) if given else (tokens, 1) if encoded else (1, tokens)
    case = {"kind": "serve", "engine": "transformers", "hf_config": shape, "gpu": CARDS["A100"],
            "batch_size": row["micro_batch"], "input_tokens": lengths[0], "output_tokens": lengths[1],
            "attention": {"flash": "flash_attention_2", "sdpa": "sdpa"}.get(row["attention"], "eager")}  # fmt: skip
    quantised = {"gptq int4": GPTQ, "int8": {"bits": 8}, "int4": {"bits": 4}}
    old = re.search(r"PyTorch 2\.0", row.get("versions", ""))  # of 2023: transformers 4.30 to 4.32
    case |= {"engine_version": "4.32"} if old else {}
    plan = next((p for key, p in quantised.items() if row["precision"].startswith(key)), None)
    return {**case, "quantization": plan} if plan else case


def generate_rows(row: dict[str, Any], shape: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    forecast = planner.predict(generate_case(row, shape))
    if row["outcome"] == "oom":
        yield "fits", False, forecast.fits
        return
    peak = forecast.peak_allocated_bytes / GIB / row["gpus"]
    yield "peak GiB", row.get("measured_gib_range") or row["measured_gib"], peak


def sglang_rows(row: dict[str, Any], shape: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    said = row["serving"]
    forecast = planner.predict(
        {"kind": "serve", "engine_version": "0.4.3", "hf_config": shape, "tp_size": said["tp"],
         "gpu": {"total_mib": 23_034, "free_before_weights_gib": said["avail_before_load_gib"]},
         "mem_fraction_static": said["mem_fraction_static"], "context_length": said["context_length"],
         "chunked_prefill_size": said["chunked_prefill_size"], "cuda_graph_max_bs": said["cuda_graph_max_bs"],
         "attention_backend": "flashinfer", "prefill_cuda_graph": False}
    )  # fmt: skip
    yield "weights GiB", said["weights_gib"], forecast.weights_bytes / GIB
    yield "KV tokens", said["kv_tokens"], forecast.kv_tokens
    yield "KV pool GiB", said["kv_gib"], forecast.kv_pool_bytes / GIB
    yield "B a token", said["kv_bytes_per_token_per_gpu"], forecast.kv_bytes_per_token
    yield "graphs GiB", said["graph_gib"], forecast.graphs_bytes / GIB


def neutral_rows(row: dict[str, Any], shape: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What a vLLM row says that any engine shares."""
    said = row["serving"]
    forecast = planner.predict(
        {
            "kind": "serve",
            "hf_config": shape,
            "gpu": "h200",
            "tp_size": said["tp"],
            "context_length": row["seq_len"],
        }
    )
    loaded = forecast.weights_bytes - planner.tables.constant_bytes("sglang_loader_gib")
    if "weights_gib" in said:
        yield "weights GiB", said["weights_gib"], loaded / GIB
    if "kv_bytes_per_token" in said:
        yield "B a token", said["kv_bytes_per_token"], forecast.kv_bytes_per_token
    if "kv_tokens" in said and row.get("measured_gib"):
        stated_pool = said["kv_tokens"] * forecast.kv_bytes_per_token / GIB
        yield "pool of stated tokens GiB", row["measured_gib"], stated_pool


def compared(row: dict[str, Any], shape: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    engine = row.get("serving", {}).get("engine")
    if engine == "sglang":
        yield from sglang_rows(row, shape) if "kv_tokens" in row["serving"] else ()
    elif engine == "vllm":
        yield from neutral_rows(row, shape)
    elif row["outcome"] in ("measured", "oom"):
        yield from generate_rows(row, shape)


def difference(stated: Any, forecast: float) -> float:
    """Forecast over stated less one; to the nearer end of a range, nothing inside it."""
    if isinstance(stated, list):
        low, high = stated
        stated = min(max(forecast, low), high)
    return forecast / stated - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path)
    groups: dict[str, list[float]] = defaultdict(list)
    left_out: list[str] = []
    print(f"{'row':34s} {'figure':26s} {'stated':>17s} {'forecast':>10s} {'diff':>7s}")
    for row in rows_of(parser.parse_args().cases):
        shape = shape_of(row)
        found = [] if shape is None else list(compared(row, shape))
        if not found:
            left_out.append(row["id"])
        for figure, stated, forecast in found:
            if isinstance(stated, bool):
                print(f"{row['id']:34s} {figure:26s} {stated!s:>17s} {forecast!s:>10s}")
                continue
            off = difference(stated, forecast)
            groups[f"{row['group']} | {row['confidence']} | {figure}"].append(off)
            said = "-".join(f"{x:.2f}" for x in stated) if isinstance(stated, list) else f"{stated:.2f}"
            print(f"{row['id']:34s} {figure:26s} {said:>17s} {forecast:10.2f} {off:+7.1%}")
    print(f"\n{'group | confidence | figure':90s} rows  median  median |d|  worst |d|")
    for name, offs in groups.items():
        sizes = [abs(off) for off in offs]
        middle, middle_size = statistics.median(offs), statistics.median(sizes)
        print(f"{name:90s} {len(offs):4d} {middle:+7.1%} {middle_size:10.1%} {max(sizes):10.1%}")
    print(f"\nleft out, too little stated or not forecast: {', '.join(left_out)}")


if __name__ == "__main__":
    main()
