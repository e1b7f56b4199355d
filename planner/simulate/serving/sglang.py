"""The tier `simulate` for SGLang: its own model code gives what a pass takes, the formula the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import CaseError, NotSimulated
from planner.forecast import SIMULATE
from planner.forecasting import is_unknown
from planner.serving.case import ServingCase, parse_serving_case
from planner.serving.defaults import default_fraction, prefill_tokens
from planner.serving.division import Division, Engine, divide, engine_of
from planner.serving.forecast import ServingForecast
from planner.serving.headroom import backend_of
from planner.serving.kv import Cell
from planner.serving.model import ServedModel
from planner.serving.sglang import forecast_sglang, judged
from planner.simulate.serving.request import run_child
from planner.tables import workspace_bytes
from planner.units import DTYPE_BYTES, gib

ANY_GPU, ANY_CAPABILITY = "a100-80gb", (8, 0)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
ALIKE = 0.02  # formula and simulation may differ by so much before the verdict reaches to both
DUAL_CHUNK = "dual_chunk_attention_config"
"""Attention of Qwen2.5-1M, which SGLang 0.5.23 no longer has; llmsys starts the engine without it."""
FORMULA = "; use tier formula"
NO_FORMULA = "no formula knows this family: weights, cache and passes are SGLang's own code on shapes"


def simulate_sglang(content: Mapping[str, Any], *, python: str | None = None) -> ServingForecast:
    """Forecast an SGLang start by playing a prefill chunk and a decode step of its own code on shapes.

    Args:
        content: in the case format; its family need not be known to the planner.
        python: the interpreter that holds SGLang; None: `LLMSYS_SGLANG_PYTHON`, else this one.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    began = time.perf_counter()
    case, known = _read(content)
    _refuse(case, known=known)
    division = divide(engine_of(case), case.mem_fraction_static or default_fraction(case))
    try:
        answer = run_child(_request(content, case, division), python=python)
    except NotSimulated as error:
        raise NotSimulated(f"{error}{FORMULA if known else ''}") from error
    engine = _engine(case, answer, known=known)
    forecast = _judged(engine, answer)
    notes = (*forecast.notes, *_notes(answer))
    if known:
        forecast = _beside(forecast, forecast_sglang(case))
    else:
        notes = (*notes, NO_FORMULA)
    return replace(forecast, tier=SIMULATE, notes=notes, seconds=time.perf_counter() - began)


def _read(content: Mapping[str, Any]) -> tuple[ServingCase, bool]:
    known = not is_unknown(content)
    case = parse_serving_case(content) if known else parse_serving_case(content, read=unverified_model)
    if not isinstance(case, ServingCase):
        raise CaseError(f"engine {content.get('engine')} is not SGLang")
    return case, known


def unverified_model(config: Mapping[str, Any]) -> ServedModel:
    """What the division of a card asks of a model beside its weights, its cache and its passes.

    Raises:
        CaseError: naming the sizes that are missing or no sizes.
    """
    sizes = {key: config.get(key) for key in SIZES}
    wrong = [
        f"hf_config.{key} is {value!r}; it must be a whole number above 0"
        for key, value in sizes.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]
    if wrong:
        raise CaseError(*wrong)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ServedModel(
        model_type=str(config.get("model_type")),
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=config.get("intermediate_size") or 0,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        max_positions=config.get("max_position_embeddings") or 4096,
        norm_elements=0,
        outer_elements=0,
    )


def _refuse(case: ServingCase, *, known: bool) -> None:
    reasons = {
        "quantised weights": case.plan.kind != "none",
        f"dtype {case.dtype}": case.dtype not in DTYPES,
        "a card on which SGLang's kernels do not run": (case.card.capability or ANY_CAPABILITY) < (8, 0),
    }
    refused = [name for name, applies in reasons.items() if applies]
    if refused:
        raise NotSimulated(
            f"tier simulate does not take {', '.join(refused)} for SGLang{FORMULA if known else ''}"
        )


def _request(content: Mapping[str, Any], case: ServingCase, division: Division) -> dict[str, Any]:
    card, tokens = case.card, prefill_tokens(case)
    prompts = max(1, min(division.slots or 1, tokens // (case.input_tokens or tokens)))
    arguments = {
        "tp_size": case.tp_size,
        "dtype": DTYPES[case.dtype],
        "context_length": case.context_length,
        "max_running_requests": case.max_running_requests,
        "chunked_prefill_size": case.chunked_prefill_size,
        "mem_fraction_static": case.mem_fraction_static,
        "max_total_tokens": case.max_total_tokens,
        "attention_backend": backend_of(case),
        "sampling_backend": "pytorch" if case.sorts_vocabulary else "flashinfer",
        "disable_cuda_graph": True,
    }
    return {
        "config": {name: value for name, value in content["hf_config"].items() if name != DUAL_CHUNK},
        "card": {
            "name": card.name or "a GPU",
            "capability": list(card.capability or ANY_CAPABILITY),
            "total_mib": card.total_mib,
        },
        "free_bytes": card.free_bytes,
        "workspace_bytes": workspace_bytes(card.name or ANY_GPU),
        "tp_size": case.tp_size,
        "backend": backend_of(case),
        "arguments": arguments,
        "resident": {"kv pool": division.pool.pool_bytes, "request table": division.table_bytes},
        "passes": [
            {"kind": "prefill", "tokens": tokens, "requests": prompts, "picks": "top_p"},
            {
                "kind": "decode",
                "requests": division.rows,
                "seen_tokens": case.request_tokens or case.context_length,
                "picks": "top_p",
            },
        ],
    }


def _engine(case: ServingCase, answer: Mapping[str, Any], *, known: bool) -> Engine:
    """The engine of the formula with the weights and the prefill pass of the real code."""
    prefill = answer["passes"][0]
    weights = answer["loaded_bytes"]
    engine = engine_of(case)
    cell = engine.cell if known else Cell(answer["kv_elements"] * DTYPE_BYTES[case.kv_dtype])
    return replace(
        engine,
        weights_bytes=weights,
        load_bytes=weights,
        cell=cell,
        activations_bytes=prefill["rests_bytes"] + max(prefill["model_bytes"], prefill["sampler_bytes"]),
    )


def _judged(engine: Engine, answer: Mapping[str, Any]) -> ServingForecast:
    """Judge the division; the allocator's growth over both passes must fit beside the static share."""
    case = engine.case
    division = divide(engine, case.mem_fraction_static or default_fraction(case))
    more = max(0, answer["reserved_bytes"] - engine.activations_bytes)
    forecast = judged(engine, replace(division, logits_bytes=0, sort_bytes=more))
    return replace(forecast, simulated={**_said(answer)})


def _said(answer: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("version", "model", "attention_layers", "layers", "settings", "passes")
    said = {name: answer[name] for name in plain}
    return {**said, "reserved_gib": round(gib(answer["reserved_bytes"]), 4)}


def _beside(forecast: ServingForecast, formula: ServingForecast) -> ServingForecast:
    """The simulation's verdict with the formula beside it: where they differ, it reaches to both."""
    reserve = formula.activations_bytes + formula.logits_bytes
    ours = forecast.activations_bytes + forecast.logits_bytes
    apart = abs(ours - reserve) > ALIKE * reserve
    label = "tight" if apart and forecast.label == "fits" != formula.label else forecast.label
    said = {
        **forecast.simulated,
        "formula_reserve_gib": round(gib(reserve), 4),
        "formula_weights_gib": round(gib(formula.weights_bytes), 4),
        "formula_label": formula.label,
        "difference": round(ours / reserve - 1, 4),
    }
    return replace(forecast, label=label, simulated=said)


def _notes(answer: Mapping[str, Any]) -> list[str]:
    notes = [f"passes played in SGLang {answer['version']}'s own code ({answer['model']}), eagerly, rank 0"]
    if answer["attention_layers"] < answer["layers"]:
        notes.append(
            f"{answer['layers'] - answer['attention_layers']} of {answer['layers']} layers keep no keys and "
            "values; whatever they keep instead is not counted"
        )
    return notes
