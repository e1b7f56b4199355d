"""Settings of a training job that contradict each other, or that the code behind them does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from planner.liger import liger_problems
from planner.optimizers import optimizers

Case = Mapping[str, Any]
_FUSED_LOSS = "fused_linear_cross_entropy"


def contradictions(case: Case) -> list[str]:
    """Every contradiction between keys of a case, with the reason."""
    engines = (_engines, _fsdp, _sequences, _accumulation, _optimizer)
    checks = (_offload, _nested, _methods, _quantized, *engines, _blocks)
    return [problem for check in checks for problem in check(case)]


def _offload(case: Case) -> list[str]:
    stage, method = case.get("zero_stage", 0), case.get("method")
    optimizer, param = case.get("offload_optimizer", "none"), case.get("offload_param", "none")
    problems: list[str] = []
    if optimizer != "none" and stage == 0:
        problems.append(
            "offload_optimizer needs zero_stage 1, 2 or 3: at stage 0 DeepSpeed does not shard it"
        )
    if optimizer == "nvme" and stage in (1, 2):
        problems.append("offload_optimizer nvme needs zero_stage 3: below it DeepSpeed silently uses the cpu")
    if param != "none" and stage != 3:
        problems.append("offload_param needs zero_stage 3: below it DeepSpeed ignores it")
    if param == "nvme" and method in ("lora", "qlora", "freeze"):
        problems.append("offload_param nvme fails with frozen weights in DeepSpeed 0.19; use cpu")
    return problems


def _nested(case: Case) -> list[str]:
    """What a pasted DeepSpeed configuration says otherwise than the keys of the case."""
    zero = _mapping(_mapping(case.get("deepspeed")).get("zero_optimization"))
    said: dict[str, tuple[str, Any, Any]] = {"stage": ("zero_stage", zero.get("stage"), 0)}
    for key in ("offload_optimizer", "offload_param"):
        said[f"{key}.device"] = (key, _mapping(zero.get(key)).get("device"), "none")
    problems: list[str] = []
    for where, (key, value, default) in said.items():
        ours = case.get(key, default)
        if value not in (None, ours):
            problems.append(
                f"deepspeed.zero_optimization.{where} is {value!r}, but {key} is {ours!r}; set {key}"
            )
    split = _mapping(zero.get("offload_optimizer")).get("ratio", 1.0) != 1.0
    if split and (case.get("zero_stage", 0) != 3 or case.get("offload_optimizer", "none") != "cpu"):
        problems.append("offload_optimizer.ratio needs zero_stage 3 and offload_optimizer cpu")
    return problems


def _methods(case: Case) -> list[str]:
    method, stage = case.get("method"), case.get("zero_stage", 0)
    lora = _mapping(case.get("lora"))
    problems: list[str] = []
    if method in ("lora", "qlora") and case.get("lora") is None:
        problems.append(f"method {method} needs a lora section")
    if method == "qlora" and case.get("quantization") is None:
        problems.append("method qlora needs a quantization section")
    if method in ("full", "freeze") and _given(case, "quantization", "lora"):
        problems.append(f"method {method} takes neither a lora nor a quantization section")
    if method == "lora" and _given(case, "quantization"):
        problems.append("method lora takes no quantization section; with a quantised base it is qlora")
    if lora.get("use_dora") and stage == 3:
        problems.append(
            "lora.use_dora at zero_stage 3 is not supported: peft reads the base weight where it is sharded"
        )
    if lora.get("train_base") and method == "qlora":
        problems.append("lora.train_base with qlora: a quantised base cannot be trained")
    return problems


def _quantized(case: Case) -> list[str]:
    base, lora = _mapping(case.get("quantization")), _mapping(case.get("lora"))
    saved = lora.get("modules_to_save") or ()
    problems: list[str] = _sharded(case, base) if case.get("zero_stage", 0) == 3 else []
    if base.get("kind") == "gptq" and lora.get("use_dora"):
        problems.append("lora.use_dora on a gptq base: peft refuses it (`tuners/lora/gptq.py`)")
    if not base.get("head"):
        return problems
    if base.get("kind") == "gptq":
        problems.append("quantization.head with kind gptq is not modelled: it leaves the output layer alone")
    if case.get("liger"):
        problems.append("quantization.head with liger: its fused loss reads an unquantised output layer")
    if isinstance(saved, (list, tuple)) and "lm_head" in saved:
        problems.append("quantization.head and lora.modules_to_save lm_head: packed weights are not trained")
    return problems


def _sharded(case: Case, base: Mapping[str, Any]) -> list[str]:
    """Quantised weights at stage 3: GPTQ's are no parameters, and none have been seen away from the GPU."""
    if case.get("method") != "qlora":
        return []
    if base.get("kind") == "gptq":
        return ["a gptq base at zero_stage 3 is not modelled: its packed weights are no parameters"]
    if case.get("offload_param", "none") != "none":
        return ["qlora with offload_param is not modelled; leave offload_param at none"]
    return []


def _engines(case: Case) -> list[str]:
    engine = case.get("engine", "deepspeed")
    problems: list[str] = []
    if engine != "deepspeed":
        sharded = ("zero_stage", "offload_optimizer", "offload_param", "deepspeed")
        given = [key for key in sharded if case.get(key) not in (None, 0, "none", {})]
        problems += [f"{key} is DeepSpeed's; engine {engine} has none" for key in given]
        if case.get("dtype") == "fp16":
            problems.append(f"dtype fp16 needs loss scaling, which engine {engine} is not modelled with")
    if engine == "fsdp2" and case.get("method") == "qlora":
        problems.append("engine fsdp2 with qlora is not modelled")
    return problems


def _fsdp(case: Case) -> list[str]:
    if case.get("engine", "deepspeed") != "fsdp2":
        return ["fsdp says how engine fsdp2 shards, but the engine is another"] if case.get("fsdp") else []
    kind = _mapping(case.get("checkpointing")).get("kind", "non_reentrant")
    problems: list[str] = []
    if kind != "non_reentrant":
        problems.append(f"checkpointing.kind {kind} with engine fsdp2 is not modelled; use non_reentrant")
    row = optimizers().get(str(case.get("optimizer", "deepspeed_adamw")))
    if row is not None and (row.block or row.paged or row.factored):
        problems.append(f"optimizer {row.name} with engine fsdp2 is not modelled; use torch_adamw")
    return problems


def _sequences(case: Case) -> list[str]:
    problems: list[str] = []
    ranks, world = case.get("sequence_parallel", 1), case.get("world_size", 1)
    length = case.get("seq_len", 512)
    if _counts(ranks, world, length):
        if world % ranks:
            problems.append(f"sequence_parallel {ranks} does not divide world_size {world}")
        if length % ranks:
            problems.append(f"sequence_parallel {ranks} does not divide seq_len {length}")
    return problems


def _accumulation(case: Case) -> list[str]:
    """Gradients in another type than the weights (DeepSpeed `engine.py: _do_optimizer_sanity_check`)."""
    types = _mapping(_mapping(case.get("deepspeed")).get("data_types"))
    wanted, dtype = types.get("grad_accum_dtype"), case.get("dtype", "bf16")
    stage, offloads = case.get("zero_stage", 0), case.get("offload_optimizer", "none") != "none"
    if wanted in (None, dtype):
        return []
    if stage == 0:
        return ["grad_accum_dtype other than dtype needs zero_stage 1, 2 or 3 (DeepSpeed refuses it)"]
    if wanted != "fp32":
        return [f"grad_accum_dtype {wanted} with dtype {dtype} is not modelled; use fp32 or {dtype}"]
    if stage == 1 and dtype != "bf16":
        return [f"grad_accum_dtype fp32 at zero_stage 1 with dtype {dtype} is not modelled; use zero_stage 2"]
    if stage in (1, 2) and offloads:
        return ["grad_accum_dtype fp32 with offload_optimizer is not modelled below zero_stage 3"]
    return []


def _optimizer(case: Case) -> list[str]:
    name, engine = case.get("optimizer", "deepspeed_adamw"), case.get("engine", "deepspeed")
    row = optimizers().get(str(name))
    if row is None:
        return []
    problems: list[str] = []
    if engine != "deepspeed" and not row.plain:
        problems.append(f"optimizer {name} is DeepSpeed's; engine {engine} takes torch_adamw and its kin")
    offloaded = case.get("offload_optimizer", "none") != "none"
    if offloaded and not row.offload:
        problems.append(
            f"optimizer {name} has no CPU version to offload to; use deepspeed_adamw or torch_adamw"
        )
    return problems


def _blocks(case: Case) -> list[str]:
    """How blocks and loss are run."""
    liger, kernels = case.get("liger"), case.get("liger_kernels")
    problems: list[str] = []
    if case.get("checkpointing") and not case.get("gradient_checkpointing", False):
        problems.append("checkpointing says how, but gradient_checkpointing is off")
    fuses = kernels is None or (isinstance(kernels, (list, tuple)) and _FUSED_LOSS in kernels)
    if liger and fuses and case.get("loss", "stock") == "chunked":
        problems.append(
            "loss chunked and liger both replace the loss; choose one, or leave "
            f"{_FUSED_LOSS} out of liger_kernels"
        )
    if case.get("loss") == "litgpt_chunked" and (liger or case.get("outputs_kept")):
        problems.append("loss litgpt_chunked is of LitGPT's loop, which has neither liger nor outputs_kept")
    if kernels is not None and not liger:
        problems.append("liger_kernels says which, but liger is off")
    if case.get("attention") == "flash_attention_2" and case.get("dtype", "bf16") == "fp32":
        problems.append("attention flash_attention_2 computes in bf16 or fp16 alone, but dtype is fp32")
    return problems


def misfits(case: Case, parsed: Mapping[str, Any]) -> list[str]:
    """Settings that this architecture cannot have."""
    architecture = parsed.get("architecture")
    if architecture is None:
        return []
    problems: list[str] = []
    trained = parsed.get("freeze_last_layers", 0)
    if trained > architecture.layers:
        problems.append(f"freeze.last_layers is {trained}, but the model has {architecture.layers} layers")
    length, positions = case.get("seq_len", 512), architecture.learned_positions
    if positions and _counts(length) and length > positions:
        problems.append(f"seq_len is {length}, but the model has learned {positions} positions")
    ranks = case.get("sequence_parallel", 1)
    if _counts(ranks) and architecture.heads % ranks:
        problems.append(f"sequence_parallel {ranks} does not divide {architecture.heads} attention heads")
    elif _counts(ranks) and architecture.kv_heads % ranks:
        heads = f"{architecture.kv_heads} key-value heads"
        problems.append(f"sequence_parallel {ranks} does not divide {heads}, which is not modelled")
    base = parsed.get("quantization")
    if base is not None and base.head and architecture.tied:
        problems.append("quantization.head: this model's output layer is its embedding, which stays whole")
    if case.get("liger"):
        problems += liger_problems(architecture.model_type, case.get("liger_kernels"))
    if architecture.latent is not None and case.get("attention_code") == "litgpt":
        problems.append(f"attention_code litgpt is not modelled for {architecture.model_type}")
    return problems


def _counts(*values: Any) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _given(case: Case, *sections: str) -> bool:
    """Whether a section is there, be it empty: then its defaults hold."""
    return any(case.get(section) is not None for section in sections)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
