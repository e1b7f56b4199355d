"""Reads an alignment job (`kind` dpo, grpo or ppo) and checks it: docs/case-format.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from planner.alignment_numbers import beta_of, count_of, lengths_of, limit_of
from planner.architecture.families import architecture_of
from planner.errors import CaseError, did_you_mean
from planner.network.scores import CHAT, TRL, VALUES
from planner.parsing import parse_training_case
from planner.serving.card import card_of
from planner.serving.case import GenerationCase
from planner.serving.formats import UNQUANTISED
from planner.serving.model import served_model
from planner.training_case import Method, TrainingCase

Case = Mapping[str, Any]
COMMON = ("kind", "memory_limit_gib")
KEYS: dict[str, tuple[str, ...]] = {
    "dpo": (*COMMON, "policy", "reference"),
    "grpo": (
        *COMMON, "policy", "reference", "beta", "num_generations", "steps_per_generation",
        "prompt_tokens", "completion_tokens",
    ),
    "ppo": (*COMMON, "actor", "critic", "reference", "reward", "prompt_tokens", "completion_tokens"),
}  # fmt: skip
SHARED = ("world_size", "gpu", "dtype", "micro_batch", "grad_accum", "attention")
"""Settings that all models of a job have in common; the first one's hold."""
FROZEN = ("hf_config",)


@dataclass(frozen=True)
class AlignmentCase:
    """Models that are trained and models that only score, by name, and how much is generated."""

    kind: str
    trained: dict[str, TrainingCase]
    frozen: dict[str, TrainingCase]
    base_scores: bool = False
    """The reference is the policy without its adapters."""
    generation: GenerationCase | None = None
    gathers_for_generation: bool = False
    """All weights are made whole while the policy generates (trl's `ds3_gather_for_generation`)."""
    memory_limit_bytes: int | None = None

    @property
    def first(self) -> TrainingCase:
        """The policy or actor."""
        return next(iter(self.trained.values()))


def parse_alignment_case(kind: str, case: Case) -> AlignmentCase:
    """Check an alignment job and give it types.

    Raises:
        CaseError: naming every problem that was found.
    """
    problems = [
        f"unknown key {k!r} of kind {kind}. {did_you_mean(str(k), KEYS[kind])}"
        for k in case
        if k not in KEYS[kind]
    ]
    if problems:
        raise CaseError(*problems)
    limit = limit_of(case)
    parsed = _ppo(case) if kind == "ppo" else _trl(kind, case)
    return replace(parsed, memory_limit_bytes=limit)


def _trl(kind: str, case: Case) -> AlignmentCase:
    given = _sub_case(case, "policy", kind)
    lengths = lengths_of(case, kind) if kind == "grpo" else None
    raw = given if lengths is None else _with_length(given, "policy", sum(lengths))
    policy = _trainable(raw, "policy")
    if kind == "dpo":
        policy = _without_dropout(policy)
    pairs = 2 if kind == "dpo" else 1  # chosen and rejected answers are one batch
    keep = 0 if lengths is None else lengths[1] + 1
    policy = replace(policy, loss=TRL, micro_batch=pairs * policy.micro_batch, logits_to_keep=keep)
    refers = kind == "dpo" or beta_of(case) != 0
    adapters = policy.lora is not None
    if not refers and case.get("reference") is not None:
        raise CaseError("reference is given, but beta is 0: trl then loads no reference model")
    own = refers and not (adapters and case.get("reference") is None)
    frozen = {"reference": _frozen(case, "reference", policy, raw["hf_config"], loss=TRL)} if own else {}
    if refers and not own and policy.zero_stage == 3:
        raise CaseError(
            "adapters at zero_stage 3 with their base as reference are not modelled; name a reference"
        )
    made = None
    if lengths is not None:
        made = _generation(raw["hf_config"], policy, lengths, _rollouts(case, policy))
    return AlignmentCase(
        kind,
        {"policy": policy},
        frozen,
        base_scores=refers and not own,
        generation=made,
        gathers_for_generation=policy.zero_stage == 3,
    )


def _ppo(case: Case) -> AlignmentCase:
    lengths = lengths_of(case, "ppo")
    given = _with_length(_sub_case(case, "actor", "ppo"), "actor", sum(lengths))
    actor = replace(_trainable(given, "actor"), loss=CHAT)
    other = _sub_case(case, "critic", "ppo")
    for key in SHARED:
        if key in other and other[key] != given.get(key, other[key]):
            raise CaseError(
                f"critic.{key} is {other[key]!r}, but actor.{key} is {given.get(key)!r}; they run in one job"
            )
    shared = {key: given[key] for key in SHARED if key in given}
    critic = _trainable(_with_length({**shared, **other}, "critic", sum(lengths)), "critic")
    for name, one in (("actor", actor), ("critic", critic)):
        if one.engine != "deepspeed":
            raise CaseError(
                f"{name}.engine is {one.engine}; kind ppo is DeepSpeed-Chat's, where each has deepspeed"
            )
    frozen = {
        "reference": _frozen(case, "reference", actor, given["hf_config"], loss=CHAT),
        "reward": _frozen(case, "reward", critic, other["hf_config"], loss=VALUES),
    }
    return AlignmentCase(
        "ppo",
        {"actor": actor, "critic": replace(critic, loss=VALUES)},
        frozen,
        generation=_generation(given["hf_config"], actor, lengths, actor.micro_batch),
    )


def _sub_case(case: Case, name: str, kind: str) -> dict[str, Any]:
    given = case.get(name)
    if not isinstance(given, Mapping):
        raise CaseError(f"kind {kind} needs {name}: a training case as a mapping")
    return dict(cast("Mapping[str, Any]", given))


def _trainable(given: Case, name: str) -> TrainingCase:
    """A training case of its own, without what an alignment job has another way."""
    try:
        case = parse_training_case({"padded": True, **given})
    except CaseError as error:
        raise CaseError(*(f"{name}: {problem}" for problem in error.problems)) from None
    refused = {
        "memory_limit_gib (it belongs to the job)": case.memory_limit_bytes is not None,
        "liger": case.liger,
        "outputs_kept": case.outputs_kept,
        "packed": case.packed,
        "sequence_parallel": case.sequence_parallel > 1,
        f"loss {case.loss} (the job has its own)": case.loss != "stock",
        "attention_code": case.attention_code != "transformers",
        "engine fsdp2": case.engine == "fsdp2",
        "offload_param": case.offload_param != "none",
        "dtype fp32": case.dtype == "fp32",
    }
    problems = [
        f"{name}: {what} is not modelled in an alignment job" for what, given in refused.items() if given
    ]
    if problems:
        raise CaseError(*problems)
    return case


def _frozen(case: Case, name: str, like: TrainingCase, config: Any, *, loss: str) -> TrainingCase:
    """A model that only scores: whole in the type of the trained one, or sharded with it at stage 3.

    Sources: trl `models/utils.py: prepare_deepspeed`; DeepSpeed-Chat `rlhf/rlhf_engine.py: _init_ref`.
    """
    given = case.get(name) or {"hf_config": config}
    if not isinstance(given, Mapping):
        raise CaseError(f"{name} must be a mapping with hf_config")
    content = cast("Mapping[str, Any]", given)
    wrong = [
        f"unknown key {name}.{key}. {did_you_mean(str(key), FROZEN)}" for key in content if key not in FROZEN
    ]
    if wrong or not isinstance(content.get("hf_config"), Mapping):
        raise CaseError(*(wrong or [f"{name} has no hf_config: the model's config.json as a mapping"]))
    return _without_dropout(
        replace(
            like,
            architecture=architecture_of(content["hf_config"]),
            method=Method.lora,  # with no adapters: nothing is trained
            lora=None,
            quantization=None,
            freeze_last_layers=0,
            gradient_checkpointing=False,
            offload_optimizer="none",
            zero_stage=3 if like.zero_stage == 3 else 0,
            loss=loss,
        )
    )


def _without_dropout(case: TrainingCase) -> TrainingCase:
    """Models that score are in eval mode; trl's `disable_dropout_in_model` does it to what DPO trains too."""
    names = ("hidden_dropout", "mlp_dropout", "attention_dropout", "embedding_dropout")
    still = replace(case.architecture, **dict.fromkeys(names, 0.0))
    lora = None if case.lora is None else replace(case.lora, dropout=0.0)
    return replace(case, architecture=still, lora=lora)


def _with_length(given: dict[str, Any], name: str, length: int) -> dict[str, Any]:
    if given.get("seq_len", length) != length:
        both = f"prompt_tokens + completion_tokens is {length}"
        raise CaseError(f"{name}.seq_len is {given['seq_len']!r}, but {both}; leave it out")
    return {**given, "seq_len": length}


def _rollouts(case: Case, policy: TrainingCase) -> int:
    """Sequences that one rank generates at a time (trl `trainer/grpo_config.py`)."""
    group = count_of(case, "num_generations", "grpo", 8)
    steps = count_of(case, "steps_per_generation", "grpo", policy.grad_accum)
    rows = policy.micro_batch * steps
    total = rows * policy.world_size
    if total % group:
        made = f"the {total} sequences made at a time (micro_batch x steps_per_generation x world_size)"
        raise CaseError(f"num_generations {group} does not divide {made}")
    return rows


def _generation(config: Any, policy: TrainingCase, lengths: tuple[int, int], rows: int) -> GenerationCase:
    return GenerationCase(
        model=served_model(config),
        card=card_of(policy.device),
        plan=UNQUANTISED,
        dtype=policy.dtype,
        attention=policy.attention,
        batch_size=rows,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        padded=True,
        memory_limit_bytes=None,
        engine_version=(5, 23),
    )
