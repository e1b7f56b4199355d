"""Does a serving job fit, why not, and what is the cheapest change that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.serving.case import ServingCase, contradictions
from planner.serving.defaults import is_early, prefill_tokens, request_slots
from planner.serving.division import Division, Engine, divide, engine_of, good_fraction, minimum_fraction
from planner.serving.formats import UNQUANTISED, WeightFormat
from planner.serving.kv import HYBRID_FAMILIES
from planner.units import gib, round_up

SMALL_CHUNK = 2048
Change = tuple[str, ServingCase]
FP8 = WeightFormat("fp8", bits=8, online=True)
INT4 = WeightFormat("awq", bits=4, group=128)
LARGE_TABLE = 2**30


@dataclass(frozen=True)
class Advice:
    """The verdict on a division of the card."""

    label: str
    cause: str | None
    fix: str | None
    good_fraction: float | None
    notes: tuple[str, ...]


def advise(engine: Engine, division: Division) -> Advice:
    """Judge a division; where it does not fit, look for a fraction first, then for a change of settings."""
    case, cause = engine.case, _cause(engine, division)
    good = good_fraction(engine)
    notes = tuple(_notes(engine, division))
    if cause is None:
        roomy = division.leaves(engine.activations_bytes)
        return Advice("fits" if roomy else "tight", None, None, good, notes)
    return Advice("does not fit", cause, _fix(case), good, notes)


def _replica_share(case: ServingCase) -> int:
    return -(-(case.concurrency or 0) // case.dp_size)


def _cause(engine: Engine, division: Division) -> str | None:
    case, free = engine.case, engine.free_bytes
    if case.card.capability is not None and case.card.capability < (8, 0):
        major, minor = case.card.capability
        return f"{case.card.name} has compute capability {major}.{minor}; SGLang's kernels start at 8.0"
    if engine.load_bytes > free:
        what = "the unquantised weights while loading" if case.plan.online else "the weights"
        return f"{what} ({gib(engine.load_bytes):.1f} GiB a GPU) exceed the {gib(free):.1f} GiB that are free"
    if engine.weights_bytes >= free * division.fraction:
        weights = gib(engine.weights_bytes)
        return f"the weights ({weights:.1f} GiB) leave no memory for the KV pool at this fraction"
    if not division.starts:
        if division.headroom_bytes <= 0:
            table = gib(division.table_bytes + engine.graphs_bytes)
            return f"request table and graphs ({table:.1f} GiB) do not fit beside the static share"
        return f"the KV pool ({division.pool.tokens} tokens) holds no request"
    need, left = (
        engine.activations_bytes + division.logits_bytes + division.sort_bytes,
        division.headroom_bytes,
    )
    if left < need:
        what = f"activations and logits need {gib(need):.1f} GiB"
        return f"{what}, {gib(left):.1f} GiB are left beside the static share"
    return _too_few(engine.case, division)


def _too_few(case: ServingCase, division: Division) -> str | None:
    load, share = division.load, _replica_share(case)
    if load is None or (load.requests >= max(1, share)):
        return None
    if load.requests == 0:
        return f"a request of {case.request_tokens} tokens exceeds the pool of {division.pool.tokens} tokens"
    length = case.request_tokens
    return f"{load.limited_by}: {load.requests} requests of {length} tokens a replica, {share} wanted"


def _fix(case: ServingCase) -> str | None:
    if case.card.capability is not None and case.card.capability < (8, 0):
        return "engine=transformers, or a GPU of compute capability 8.0 or above"
    fraction = _fitting_fraction(case)
    if fraction is not None:
        return f"mem_fraction_static={fraction:g}"
    for text, changed in _changes(case):
        found = _fitting_fraction(changed)
        if found is not None:
            return f"{text} (with mem_fraction_static={found:g})"
    return _fewer_requests(case)


def _fewer_requests(case: ServingCase) -> str | None:
    """Where nothing gives the wanted concurrency: the first change that runs any request, and how many."""
    if case.concurrency is None:
        return None
    for text, changed in [("", case), *_changes(case)]:
        engine = engine_of(changed)
        good = good_fraction(engine)
        load = None if good is None else divide(engine, good).load
        if load is not None and load.requests:
            fewer = f"concurrency={load.requests * case.dp_size} (with mem_fraction_static={good:g})"
            return f"{text} {fewer}".strip()
    return None


def _fitting_fraction(case: ServingCase) -> float | None:
    """A good fraction under which the wanted requests fit; None where there is none."""
    engine = engine_of(case)
    least = minimum_fraction(engine, _replica_share(case) or (1 if case.request_tokens else 0))
    if least is None:
        return None
    good = good_fraction(engine)
    return good if good is not None and good >= least else None


def _changes(case: ServingCase) -> Iterator[Change]:
    """Changes from cheap to dear: first each alone, then on top of one another."""
    single = [change for change in _steps(case) if _allowed(change[1])]
    yield from single
    texts, grown = dict[str, str](), case
    for _ in range(len(single)):
        step = next((s for s in _steps(grown) if _allowed(s[1])), None)
        if step is None:
            return
        # a key that changes twice is said once, as it is in the end
        texts[step[0].partition("=")[0]], grown = step
        yield " ".join(texts.values()), grown


def _allowed(case: ServingCase) -> bool:
    return not contradictions(case)


def _steps(case: ServingCase) -> Iterator[Change]:
    length, share = case.request_tokens, _replica_share(case)
    if length is not None and case.max_total_tokens is not None and case.max_total_tokens < length:
        least = round_up(length, case.page_size)
        yield f"max_total_tokens={least}", replace(case, max_total_tokens=least)
    if length is not None and length < case.context_length:
        yield f"context_length={length}", replace(case, context_length=length)
    if share and share != request_slots(case, 1 << 40):
        yield f"max_running_requests={share}", replace(case, max_running_requests=share)
    if prefill_tokens(case) > SMALL_CHUNK:
        smaller = replace(case, chunked_prefill_size=SMALL_CHUNK)
        yield f"chunked_prefill_size={SMALL_CHUNK}", smaller
    if case.kv_dtype in ("bf16", "fp16"):
        yield "kv_dtype=fp8", replace(case, kv_dtype="fp8")
    if case.plan == UNQUANTISED:
        yield "quantization=fp8", replace(case, plan=FP8)
    yield from _wider(case)
    if case.plan.bits > 4:
        yield "quantization=awq (a 4-bit checkpoint)", replace(case, plan=INT4)


def _wider(case: ServingCase) -> Iterator[Change]:
    """More GPUs a replica, within `gpus` where that is given."""
    tp = 2 * case.tp_size
    while tp <= 16 and (case.gpus is None or tp * case.dp_size <= case.gpus):
        yield f"tp_size={tp}", replace(case, tp_size=tp)
        tp *= 2


def _notes(engine: Engine, division: Division) -> Iterator[str]:
    case = engine.case
    yield "from SGLang's source; weights, pools, prefill and one start's graphs were measured (H200, 0.5.17)"
    if case.context_length > case.model.max_positions:
        yield (
            f"context_length {case.context_length} is above the {case.model.max_positions} of the model; "
            "refused unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set"
        )
    if division.table_bytes > LARGE_TABLE:
        yield (
            f"the request table takes {gib(division.table_bytes):.1f} GiB beside the static share: set "
            "context_length or max_running_requests"
        )
    if 0 < division.pool.tokens < case.context_length:
        yield f"a pool of {division.pool.tokens} tokens is below context_length: the engine warns and starts"
    if case.model.window and case.model.model_type not in HYBRID_FAMILIES:
        family = case.model.model_type
        yield f"SGLang keeps all tokens in the window layers of {family}: the window saves no memory"
    if case.tp_size > 1 and case.model.mla is not None:
        yield "the latent cache is whole on every rank: tp_size does not shrink it"
    if case.tp_size > case.model.kv_heads and case.model.mla is None:
        yield f"tp_size is above the model's {case.model.kv_heads} key-value heads: they are replicated"
    if is_early(case) and not case.engine_version.startswith("0.5.17"):
        yield f"defaults of {case.engine_version} were not read; those of 0.5.17 are used"
