"""The parts of a public record: model, GPU, adapters, optimizer, code base. Each is found, or refused with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import planner
from planner.tables import DATA

HERE = Path(__file__).parent
Record = Mapping[str, Any]
IGNORED = ("architectures", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")


class NotTranslated(Exception):
    """A record that has no faithful counterpart as a planner case; the message is the reason."""


@cache
def names() -> dict[str, Any]:
    return yaml.safe_load((HERE / "names.yaml").read_text(encoding="utf-8"))


@cache
def _hub_ids() -> dict[str, str]:
    index = yaml.safe_load((DATA / "models/index.yaml").read_text(encoding="utf-8"))
    return {row["hub_id"]: name for name, row in index.items()}


def shape(record: Record) -> dict[str, Any]:
    """The `hf_config` of a record's model."""
    model = str(record.get("model"))
    known = names()["models"].get(model, {})
    shipped = known.get("shipped") or _hub_ids().get(model)
    if shipped is not None:
        config = planner.model_config(shipped)
    elif "file" in known:
        config = json.loads((HERE / f"models/{known['file']}.json").read_text(encoding="utf-8"))
    else:
        raise NotTranslated(f"no shape for model {model!r} (benchmarks/field/names.yaml)")
    return {key: value for key, value in config.items() if key not in IGNORED}


def code_base(record: Record) -> str:
    """Whose modelling code ran: `litgpt`, `torchtune`, or `transformers` where nothing says otherwise."""
    said = " ".join(
        str(record.get(k, "")) for k in ("id", "source_url", "group", "other", "source_title")
    ).lower()
    for base in ("litgpt", "torchtune"):
        if base in said or f"lit-{base[3:]}" in said:
            return base
    return "transformers"


def gpu(record: Record) -> tuple[str | None, list[str]]:
    """Row of the planner's GPU table, and what stands in."""
    name = str(record.get("gpu_name"))
    known = names()["gpus"].get(name)
    if known is None:
        return None, [
            f"GPU {name!r} is not in the table; its workspaces and context are those of the default"
        ]
    if "like" in known:
        return known["like"], [f"GPU {name} stands in as {known['like']} (same memory)"]
    return known["row"], []


def optimizer(record: Record) -> tuple[str, list[str]]:
    """The planner's name of the optimizer."""
    said = str(record.get("optimizer", "")).lower()
    for rule in names()["optimizers"]:
        if re.search(rule["match"], said):
            if "refuse" in rule:
                raise NotTranslated(rule["refuse"])
            return rule["name"], [rule["note"]] if "note" in rule else []
    raise NotTranslated(f"optimizer {record.get('optimizer')!r} is not known")


QKV = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
}
FUSED_QKV = {
    "phi3": "qkv_proj",
    "gpt2": "c_attn",
    **dict.fromkeys(("falcon", "gpt_neox", "bloom"), "query_key_value"),
}
LITGPT_QKV = "qkv_proj"
"""LitGPT projects q, k and v at once in every family (case key `attention_code`)."""
OUT = {
    "opt": "out_proj",
    "gpt2": "attn.c_proj",
    **dict.fromkeys(("phi", "falcon", "gpt_neox", "bloom"), "dense"),
}
MLP = {
    "phi3": ("gate_up_proj", "down_proj"),
    "gpt2": ("c_fc", "mlp.c_proj"),
    **dict.fromkeys(("opt", "phi"), ("fc1", "fc2")),
    **dict.fromkeys(("falcon", "gpt_neox", "bloom"), ("dense_h_to_4h", "dense_4h_to_h")),
}
HEADS = ("head", "output", "lm_head")


def targets(record: Record, family: str, *, code: str = "transformers") -> tuple[str | list[str], list[str]]:
    """Module names of the adapters as transformers spells them in this family."""
    said = re.sub(r"\(.*?\)", "", str(record.get("lora_targets", ""))).strip().lower()
    if said in ("all", "all-linear", "all linear"):
        return "all-linear", []
    if not said:
        raise NotTranslated("the record does not say which modules are adapted")
    words = [part.strip() for part in said.split(",")]
    found, notes = _attention_targets([word for word in words if word in QKV], family, code)
    for word in words:
        if word in HEADS:
            notes.append("the adapter on the output head is left out")
        elif word == "mlp":
            found += MLP.get(family, ("gate_proj", "up_proj", "down_proj"))
        elif word in ("o", "o_proj", "output_proj"):
            found.append(OUT.get(family, "o_proj"))
        elif word not in QKV:
            found.append(word)
    return sorted(set(found)), notes


def _attention_targets(words: list[str], family: str, code: str) -> tuple[list[str], list[str]]:
    names = sorted({QKV[word] for word in words})
    fused = FUSED_QKV.get(family, LITGPT_QKV if code == "litgpt" else None)
    if fused is None or not names:
        return names, []
    if len(names) == len(set(QKV.values())):
        return [fused], []
    if code != "litgpt":
        raise NotTranslated("adapters on a part of a fused qkv projection")
    return [fused], [
        "LitGPT's adapter on a part of the fused qkv, padded to all of it, stands in as one on all of it"
    ]


def lengths(record: Record) -> tuple[tuple[int, ...], list[str]]:
    """Sequence lengths to forecast: one, or both ends of a range that the record states itself."""
    if record.get("seq_len"):
        return (int(record["seq_len"]),), []
    said = str(record.get("assumptions", ""))
    span = re.search(r"length[^.;]*?\((\d+)-(\d+)\)", said)
    if span:
        return (int(span[1]), int(span[2])), [f"length not stated: forecast from {span[1]} to {span[2]}"]
    about = re.search(r"length (\d+) or so", said)
    if about:
        return (int(about[1]),), [f"length not stated: about {about[1]} according to the record"]
    raise NotTranslated("the sequence length is not stated")
