"""Settings of a training job that contradict each other, or that the code behind them does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from planner.optimizers import optimizers

Case = Mapping[str, Any]


def contradictions(case: Case) -> list[str]:
    """Every contradiction between keys of a case, with the reason."""
    return [*_offload(case), *_methods(case), *_engines(case), *_optimizer(case), *_checkpoints(case)]


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


def _methods(case: Case) -> list[str]:
    method, stage = case.get("method"), case.get("zero_stage", 0)
    lora = _mapping(case.get("lora"))
    problems: list[str] = []
    if method in ("lora", "qlora") and case.get("lora") is None:
        problems.append(f"method {method} needs a lora section")
    if method == "qlora" and case.get("quantization") is None:
        problems.append("method qlora needs a quantization section")
    if method in ("full", "freeze") and (case.get("quantization") or case.get("lora")):
        problems.append(f"method {method} takes neither a lora nor a quantization section")
    if method == "lora" and case.get("quantization"):
        problems.append("method lora takes no quantization section; with a quantised base it is qlora")
    if method == "qlora" and stage == 3:
        problems.append(
            "qlora at zero_stage 3 is not supported: transformers skips zero.Init for quantised models"
        )
    if lora.get("use_dora") and stage == 3:
        problems.append(
            "lora.use_dora at zero_stage 3 is not supported: peft reads the base weight where it is sharded"
        )
    if lora.get("train_base") and method == "qlora":
        problems.append("lora.train_base with qlora: a quantised base cannot be trained")
    return problems


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
    ranks, world = case.get("sequence_parallel", 1), case.get("world_size", 1)
    length = case.get("seq_len", 512)
    if _counts(ranks, world, length):
        if world % ranks:
            problems.append(f"sequence_parallel {ranks} does not divide world_size {world}")
        if length % ranks:
            problems.append(f"sequence_parallel {ranks} does not divide seq_len {length}")
    types = _mapping(_mapping(case.get("deepspeed")).get("data_types"))
    if (
        types.get("grad_accum_dtype") not in (None, case.get("dtype", "bf16"))
        and case.get("zero_stage", 0) == 0
    ):
        problems.append("grad_accum_dtype other than dtype needs zero_stage 1, 2 or 3 (DeepSpeed refuses it)")
    return problems


def _optimizer(case: Case) -> list[str]:
    name, engine = case.get("optimizer", "deepspeed_adamw"), case.get("engine", "deepspeed")
    row = optimizers().get(str(name))
    if row is None:
        return []
    problems: list[str] = []
    if engine != "deepspeed" and not row.plain:
        problems.append(f"optimizer {name} is DeepSpeed's; engine {engine} takes torch_adamw and its kin")
    offloaded = case.get("offload_optimizer", "none") != "none"
    if offloaded and (row.block or row.paged or row.factored):
        problems.append(
            f"optimizer {name} has no CPU version to offload to; use deepspeed_adamw or torch_adamw"
        )
    return problems


def _checkpoints(case: Case) -> list[str]:
    given = case.get("checkpointing")
    if given and not case.get("gradient_checkpointing", False):
        return ["checkpointing says how, but gradient_checkpointing is off"]
    if case.get("liger") and case.get("loss", "stock") == "chunked":
        return ["loss chunked and liger both replace the loss; choose one"]
    if case.get("liger_kernels") is not None and not case.get("liger"):
        return ["liger_kernels says which, but liger is off"]
    return []


def misfits(case: Case, parsed: Mapping[str, Any]) -> list[str]:
    """Settings that this architecture cannot have."""
    architecture = parsed.get("architecture")
    if architecture is None:
        return []
    problems: list[str] = []
    trained = parsed.get("freeze_last_layers", 0)
    if trained > architecture.layers:
        problems.append(f"freeze.last_layers is {trained}, but the model has {architecture.layers} layers")
    ranks = case.get("sequence_parallel", 1)
    if _counts(ranks) and architecture.heads % ranks:
        problems.append(f"sequence_parallel {ranks} does not divide {architecture.heads} attention heads")
    return problems


def _counts(*values: Any) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
