"""Estimators of fine-tuning memory from the package index."""

from __future__ import annotations

from typing import Any

from benchmarks.rivals.models import explicit, parameters
from benchmarks.rivals.rows import GIB, HALF, OutOfScope, Rival, Row, one_gpu_only, refuse

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
GATED = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
MIB_PER_GIB = 1024
CONSUMER_CARD_GIB = 24.0
VRAMCALC_FAMILIES = ("llama", "mistral", "qwen2", "gemma", "gemma2")  # its README, "Scope"


def _fitcheck(row: Row) -> Any:
    dense = ("llama", "mistral", "qwen2", "qwen3", "gemma")
    refuse(
        **one_gpu_only(row),
        not_a_dense_decoder_with_a_gated_MLP_and_full_attention=row.family not in dense,
        sliding_window=bool(row.config.get("sliding_window")) and row.config.get("use_sliding_window", True),
    )
    from fitcheck import ModelConfig, TrainingConfig, UnsupportedModelError, estimate, get_gpu
    from fitcheck.config_parser import _count_params, _parse_fields, _reconcile_param_count

    fields = _parse_fields(explicit(row.config))
    try:  # what the hub would report: the exact count
        count = _reconcile_param_count(row.name, parameters(row.config), _count_params(fields))
    except UnsupportedModelError as error:
        raise OutOfScope("parameter count differs by more than its tolerance") from error
    model = ModelConfig(name=row.name, num_params=count, **fields.__dict__)
    lora, quantization = row.lora, row.quantization
    stored = "none" if quantization is None else {4: "nf4", 8: "int8"}[quantization["bits"]]
    training = TrainingConfig(
        precision=row.dtype,
        quantization=stored,
        double_quant=stored == "nf4" and quantization["double_quant"],
        optimizer="adamw",
        batch_size=row.micro_batch,
        seq_len=row.seq_len,
        lora_rank=None if lora is None else lora["r"],
        lora_targets=ATTENTION if lora is None else (GATED if row.targets == "all-linear" else row.targets),
        grad_checkpoint=row.gradient_checkpointing,
        flash_attn=row.attention != "eager",
    )
    return estimate(model, training, get_gpu("h100"))


def fitcheck_tensors(row: Row) -> float:
    """fitcheck-llm, the sum of its five tensor terms.

    Scope: one GPU, dense decoder with a gated MLP; full, LoRA, NF4, int8; SDPA counts as its "flash-like" path. Its
    evidence is a T4 only, so the default overhead profile applies. No engine enters: DeepSpeed's buckets and step
    copies are unknown to it. Compared with what is allocated, as its own "tensors" tier is.
    """
    report = _fitcheck(row)
    return (report.total_mib - report.overhead_mib) / MIB_PER_GIB


def fitcheck_process(row: Row) -> float:
    """fitcheck-llm, its total: the memory of the process. Scope as above."""
    return _fitcheck(row).total_mib / MIB_PER_GIB


def vramcalc_total(row: Row) -> float:
    """Vramcalc, its total, which it compares with what is allocated.

    Scope: one GPU, llama/mistral/qwen2/gemma/gemma2, full or LoRA on exactly q, k, v, o, no quantisation. Its
    precisions are "amp" (fp32 weights) and "pure" (16-bit weights and states, no master copy), so a 16-bit full
    fine-tune under DeepSpeed, which keeps a master copy, has no setting.
    """
    refuse(
        **one_gpu_only(row),
        model_type_not_supported=row.family not in VRAMCALC_FAMILIES,
        quantised_base=row.method == "qlora",
        adapters_only_on_q_k_v_o=row.method == "lora" and sorted(row.targets) != sorted(ATTENTION),
        no_setting_for_16_bit_weights_with_a_master_copy=row.method == "full" and row.dtype in HALF,
    )
    from vramcalc import estimate

    answer = estimate(
        explicit(row.config), mode="train", dtype=row.dtype, batch=row.micro_batch, seq_len=row.seq_len, precision="pure",
        lora_rank=None if row.lora is None else row.lora["r"], grad_checkpoint=row.gradient_checkpointing,
        optimizer="adamw", attn_impl="flash" if row.attention == "flash_attention_2" else row.attention,
    )  # fmt: skip
    return answer.total / GIB


SCOPES = {
    "all-linear": "all_linear",
    tuple(sorted(ATTENTION)): "attention",
    ("q_proj", "v_proj"): "conservative",
}
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral")


def canifinetune_reserved(row: Row) -> float:
    """Canifinetune: its total less the safety margin, which it says is the process's peak reserved.

    Scope: one GPU, full, LoRA, QLoRA with its target scopes (q,v; q,k,v,o; all linear). Its AdamW keeps no master
    copy, so a 16-bit full fine-tune under DeepSpeed has no setting; fp32 has. Its overhead is 8 % of the card, a
    share that it measured on 16 and 24 GB cards: it is told 24 GiB here, since 8 % of an H200 would be absurd.
    """
    targets = () if row.lora is None else row.targets
    scope = SCOPES.get(targets if isinstance(targets, str) else tuple(sorted(targets)))
    refuse(
        **one_gpu_only(row),
        no_setting_for_16_bit_weights_with_a_master_copy=row.method == "full" and row.dtype in HALF,
        adapters_on_modules_outside_its_scopes=row.lora is not None
        and (scope is None or row.family not in LLAMA_LIKE),
    )
    from canifinetune.estimator import EstimateRequest, estimate

    quantization = row.quantization
    stored = "none" if quantization is None else {4: "nf4", 8: "int8"}[quantization["bits"]]
    if stored == "nf4" and quantization["double_quant"]:
        stored = "nf4_double_quant"
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
            "vocab_size", "tie_word_embeddings", "num_local_experts", "num_experts_per_tok")  # fmt: skip
    config = explicit(row.config)
    known = {k: config[k] for k in keys if config.get(k) is not None}
    request = EstimateRequest(
        model_id=row.name, method=row.method, seq_len=row.seq_len, micro_batch_size=row.micro_batch,
        base_dtype=row.dtype, quantization=stored, lora_rank=8 if row.lora is None else row.lora["r"],
        lora_target_scope=scope or "attention", optimizer="adamw_torch_fused", use_network=False,
        gradient_checkpointing=row.gradient_checkpointing, attention_implementation=row.attention,
        gpu_vram_gb=CONSUMER_CARD_GIB, override=known | {"family": row.family, "total_params": parameters(row.config)},
    )  # fmt: skip
    memory = estimate(request).memory
    return memory.total_estimated_gb - memory.safety_margin_gb


def _ftune_spec(row: Row) -> Any:
    """The tool's own table where it has the model, else what it would make of the hub's config.json."""
    from ftuneai import hub
    from ftuneai.loader import load_models

    hub.fetch_model_config = lambda _: row.config
    spec = hub.resolve_model_from_hub(f"measured/{row.name}")
    shape = (
        "hidden_size",
        "num_layers",
        "num_attention_heads",
        "num_kv_heads",
        "intermediate_size",
        "vocab_size",
    )
    same = (m for m in load_models().values() if all(getattr(m, k) == getattr(spec, k) for k in shape))
    return next(same, spec)


def ftuneai_total(row: Row) -> float:
    """Ftuneai, its total: VRAM with 20 % for CUDA context and fragmentation, so the memory of the process.

    Scope: full, LoRA (q,v; q,k,v,o; all linear), QLoRA; ZeRO 1-3 by plain division; 16-bit; no offload. Its flash
    switch is for FlashAttention-2; its own measurements of SDPA runs leave it off, and so does this adapter.
    """
    names = {
        "all-linear": "all_linear",
        tuple(sorted(ATTENTION)): "attention_all",
        ("q_proj", "v_proj"): "attention",
    }
    targets = () if row.lora is None else row.targets
    target = names.get(targets if isinstance(targets, str) else tuple(sorted(targets)))
    refuse(
        offload=row.offloads,
        part_of_the_layers_trained=row.method == "freeze",
        Liger=row.liger,
        not_16_bit=row.dtype not in HALF,
        adapters_on_modules_outside_its_scopes=row.lora is not None and target is None,
    )
    from ftuneai.core.memory import MemoryEstimator
    from ftuneai.core.models import (
        FineTuneMethod,
        LoRATarget,
        OptimizerType,
        Quantization,
        ShardingStrategy,
        TrainingConfig,
    )

    stored = Quantization.NONE
    if row.quantization is not None:
        stored = {4: Quantization.INT4, 8: Quantization.INT8}[row.quantization["bits"]]
    training = TrainingConfig(
        method=FineTuneMethod(row.method), quantization=stored, batch_size=row.micro_batch, seq_length=row.seq_len,
        gradient_checkpointing=row.gradient_checkpointing, optimizer=OptimizerType.ADAMW,
        lora_rank=8 if row.lora is None else row.lora["r"], lora_target=LoRATarget(target or "attention"),
        flash_attention=row.attention == "flash_attention_2", num_gpus=row.world_size,
        sharding=ShardingStrategy(f"zero_{row.zero_stage}" if row.zero_stage else "none"),
    )  # fmt: skip
    try:
        return MemoryEstimator(_ftune_spec(row), training).estimate().total_gb
    except ValueError as error:
        raise OutOfScope(str(error)) from error


RIVALS = [
    Rival("fitcheck-llm tensors", "fitcheck-llm", "allocated", fitcheck_tensors),
    Rival("fitcheck-llm process", "fitcheck-llm", "process", fitcheck_process),
    Rival("vramcalc", "vramcalc", "allocated", vramcalc_total),
    Rival("canifinetune", "canifinetune", "reserved", canifinetune_reserved),
    Rival("ftuneai", "ftuneai", "process", ftuneai_total),
]
