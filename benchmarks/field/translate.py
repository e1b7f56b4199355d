"""From a public record (kind `train`) to planner cases, with everything that had to stand in for something else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from benchmarks.field import parts
from benchmarks.field.engines import dtype, engine
from benchmarks.field.parts import NotTranslated, Record

CODE_NOTES = {
    "litgpt": [
        "LitGPT: its attention (one projection, no mask, repeated keys) and its loss over fp32 logits are forecast;"
        " zero-padded adapters and norms scaled in fp32 are not",
    ],
    "torchtune": ["torchtune: own modules and an fp32 loss on a contiguous copy of the logits"],
    "transformers": [],
}
DROPOUT = {"litgpt": 0.05}
# Commits 43c4432 (April), e549398 (July, all QLoRA figures) and 00af8b0 (September 2024) of LitGPT, in which its table
# got its figures, pin bitsandbytes==0.42.0 in pyproject.toml.
LITGPT_BNB = "0.42.0"
OWN_CODE: dict[str, dict[str, Any]] = {"litgpt": {"attention_code": "litgpt", "loss": "litgpt_chunked"}}


@dataclass
class Translation:
    """Cases to forecast (one, or both ends of a stated range) and what stands in in them."""

    cases: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def translate(record: Record) -> Translation:
    """Translate one record.

    Raises:
        NotTranslated: with the reason, where no faithful case exists.
        Waiting: where only a key of the planner is missing.
    """
    code = parts.code_base(record)
    config, notes = _config(record, code)
    method, adapters, more = _method(record, code, config["model_type"])
    shards, others = engine(record, method)
    device, gpu_notes = parts.gpu(record)
    lengths, length_notes = parts.lengths(record)
    micro, batch_notes = _micro_batch(record)
    attention, attention_notes = _attention(record, code, config)
    notes += [*more, *others, *gpu_notes, *length_notes, *batch_notes, *attention_notes, *CODE_NOTES[code]]
    case: dict[str, Any] = {
        "hf_config": config, "method": method, **adapters, **shards, "micro_batch": micro,
        "grad_accum": int(record.get("grad_accum") or 1), "attention": attention,
        "gradient_checkpointing": bool(record.get("gradient_checkpointing")),
    }  # fmt: skip
    case |= OWN_CODE.get(code, {})
    if device is not None:
        case["gpu"] = device
    if record.get("outputs_kept"):
        case["outputs_kept"] = True
    if _builds_a_mask_unasked(record, code):
        case["packed"] = True
        notes.append("transformers 4.57 builds a mask where none is given, as for packed documents")
    if record.get("gradients_zeroed_in_place"):
        case["grad_accum"] = max(2, case["grad_accum"])
        notes.append("gradients are zeroed, not freed: as in accumulation, they stay beside the activations")
    if "expandable_segments" in str(record.get("other", "")):
        case["expandable_segments"] = True
    return Translation([{**case, "seq_len": length} for length in lengths], notes)


def _builds_a_mask_unasked(record: Record, code: str) -> bool:
    """Source: transformers 4.57.6 `masking_utils.py: find_packed_sequence_indices` never returns None.

    Read in the source after vramcalc's rows without checkpointing came out 2-4 % low.
    """
    old = re.search(r"transformers 4\.57\b", str(record.get("versions", ""))) is not None
    return old and code == "transformers" and record.get("attention_mask") == "none given"


def _config(record: Record, code: str) -> tuple[dict[str, Any], list[str]]:
    config = parts.shape(record)
    if code != "litgpt":
        return config, []
    notes: list[str] = []
    if config.get("tie_word_embeddings", True):
        config["tie_word_embeddings"] = False
        notes.append("LitGPT keeps the output head apart from the embedding")
    for key in ("hidden_act", "activation"):
        if config.get(key) == "gelu_new":
            config[key] = "gelu"
            notes.append("LitGPT's GELU is one kernel of torch, not spelt out as in transformers")
    return config, notes


def _method(record: Record, code: str, family: str) -> tuple[str, dict[str, Any], list[str]]:
    said = str(record.get("method", "")).lower()
    bits = 8 if "int8" in said or "8-bit base" in str(record.get("precision", "")) else 4
    if said == "full":
        return "full", {}, []
    if said not in ("lora", "qlora", "lora on int8 base"):
        raise NotTranslated(f"method {record.get('method')!r} has no counterpart")
    targets, notes = parts.targets(record, family, code=code)
    dropout, more = _dropout(record, code)
    notes += more
    rank = record.get("lora_rank")
    if rank is None:
        raise NotTranslated("the adapter's rank is not stated")
    lora = {
        "r": int(rank),
        "target_modules": targets,
        "dropout": dropout,
        "adapter_dtype": record.get("adapter_dtype") or dtype(record),
    }
    if said == "lora":
        return "lora", {"lora": lora}, notes
    quantization, more = _quantization(record, code, bits)
    return "qlora", {"lora": lora, "quantization": quantization}, [*notes, *more]


def _dropout(record: Record, code: str) -> tuple[float, list[str]]:
    if record.get("lora_dropout") is not None:
        return float(record["lora_dropout"]), []
    if code in DROPOUT:
        return DROPOUT[code], [f"adapter dropout {DROPOUT[code]}, from the yaml files of the source"]
    return 0.0, ["adapter dropout not stated: none assumed"]


def _quantization(record: Record, code: str, bits: int) -> tuple[dict[str, Any], list[str]]:
    double = "double" in str(record.get("precision", "")) or code == "torchtune"
    prepared = code == "transformers"
    notes = {
        "litgpt": [
            f"bitsandbytes {LITGPT_BNB}, as LitGPT pinned it: products keep their inputs",
            "Fabric packs fp16 copies of all linear weights, the output head's too (plugins/precision/bitsandbytes.py)",
            "paged AdamW for adapters",
        ],
        "torchtune": ["torchtune's NF4 (torchao) stands in as bitsandbytes' with double quantisation"],
        "transformers": ["prepare_model_for_kbit_training assumed"],
    }[code]
    quantization = {
        "bits": bits,
        "quant_type": "nf4",
        "double_quant": double and bits == 4,
        "prepare_for_kbit_training": prepared,
    }
    if code == "litgpt":
        quantization |= {"bnb_version": LITGPT_BNB, "unpacked_dtype": "fp16", "head": True}
    return quantization, notes


def _micro_batch(record: Record) -> tuple[int, list[str]]:
    micro = record.get("micro_batch")
    if micro is not None:
        return int(micro), []
    if record.get("outcome") == "measured":
        raise NotTranslated("the batch is not stated")
    return 1, ["batch not stated: 1, the least it can be"]


def _attention(record: Record, code: str, config: dict[str, Any]) -> tuple[str, list[str]]:
    said = str(record.get("attention", "")).lower()
    if code == "litgpt" and config["model_type"] == "gemma2":
        return "eager", ["LitGPT computes soft-capped attention without a fused kernel"]
    if said.startswith("flash"):
        return "flash_attention_2", []
    if said.startswith("eager"):
        return "eager", []
    if said == "sdpa":
        return "sdpa", []
    return "sdpa", [f"attention {record.get('attention')!r}: sdpa"]
