"""A serving forecast as text: verdict first, reason second, remedy third, then what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.console import VERDICT_STYLES, Console, gib, mib
from planner.serving.forecast import GenerationForecast, ServingForecast
from planner.units import MIB

if TYPE_CHECKING:
    from llmsys_exp.plan.serving import ServingPlan

MEANING = {
    "weights": "with rotary table",
    "kv_pool": "tokens of running and finished requests",
    "request_table": "a row for each request, as long as the context",
    "graphs": "captured for decoding and prefill",
    "activations": "of one prefill pass",
    "logits": "and what picking a token from them takes",
    "unused": "",
}


def show_serving(console: Console, plan: ServingPlan, *, settings: bool = True) -> None:
    """Write a serving plan: verdict, memory, limits, notes, and each setting with its reason."""
    console.line(console.style(plan.label, "bold", VERDICT_STYLES.get(plan.label, "bold")))
    for text in serving_lines(plan):
        console.line(f"  {text}")
    if isinstance(plan.forecast, ServingForecast):
        _show_division(console, plan, plan.forecast)
    elif isinstance(plan.forecast, GenerationForecast):
        _show_call(console, plan, plan.forecast)
    if settings:
        from llmsys_exp.report.plan_text import show_choices

        show_choices(console, plan.choices)
    for note in plan.notes:
        console.line(console.style(f"  note: {note}", "dim"))


def serving_lines(plan: ServingPlan) -> list[str]:
    """Return reason and remedy of a serving plan's verdict."""
    lines = [_need(plan)]
    if plan.cause:
        lines.append(f"{plan.cause[0].upper()}{plan.cause[1:]}.")
    if plan.fix:
        lines.append(f"It would fit with {plan.fix}.")
    return lines


def _need(plan: ServingPlan) -> str:
    forecast, name = plan.forecast, plan.config.inference.engine
    if forecast is None:
        return f"{name}: {plan.work.describe()}."
    if isinstance(forecast, ServingForecast):
        return (
            f"{name}, {_gpus(plan, forecast)}: {forecast.kv_tokens:,} KV tokens in each replica, "
            f"mem_fraction_static {forecast.mem_fraction_static:g}."
        )
    budget = "" if forecast.budget_bytes is None else f" of the {gib(forecast.budget_bytes)} GiB it may use"
    return f"{name}: a batch needs {gib(forecast.peak_allocated_bytes)} GiB{budget}."


def _gpus(plan: ServingPlan, forecast: ServingForecast) -> str:
    hardware, settings = plan.config.hardware, plan.config.inference.sglang
    if hardware.gpu == "cpu":
        return "the CPU"
    if forecast.gpus == 1:
        return f"one {hardware.gpu}"
    return f"{forecast.gpus} x {hardware.gpu} ({settings.dp_size} replicas of {settings.tp_size})"


def _show_division(console: Console, plan: ServingPlan, forecast: ServingForecast) -> None:
    console.title("Memory of one GPU, GiB")
    total = forecast.free_before_weights_bytes
    console.table(
        [*_parts(forecast.components, total), ["free before the weights", gib(total), ""]], right=(1,)
    )
    if forecast.starts:
        console.title("Requests")
        console.table(_requests(plan, forecast), right=(1,))


def _requests(plan: ServingPlan, forecast: ServingForecast) -> list[list[str]]:
    work, settings = plan.work, plan.config.inference.sglang
    length, half = f"{work.mean_tokens:,} + {work.new_tokens:,}", -(-work.new_tokens // 2)
    rows = [
        ["KV tokens of a replica", f"{forecast.kv_tokens:,}", f"{forecast.kv_bytes_per_token:,} bytes each"],
        ["most requests at a time", f"{settings.max_running_requests:,}", "over all replicas"],
    ]
    if forecast.concurrent_requests is not None:
        how = f"of {length} tokens, all at full length; limited by: {forecast.limited_by}"
        rows.append(["requests that fit", f"{forecast.concurrent_requests:,}", how])
        how = f"of {work.mean_tokens:,} + {half:,} tokens, half-way through their answers"
        rows.append(["on average", f"{forecast.concurrent_requests_mean:,}", how])
        rows.append(["admitted at once", f"{forecast.admitted_requests:,}", "before any has answered"])
    for name, value, how in (
        ("smallest mem_fraction_static", forecast.minimum_mem_fraction_static, "that starts"),
        ("largest", forecast.good_mem_fraction_static, "that leaves what runs twice its room"),
    ):
        rows.append([name, "none" if value is None else f"{value:g}", how])
    return rows


def _show_call(console: Console, plan: ServingPlan, forecast: GenerationForecast) -> None:
    console.title(f"Memory of one call at its highest ({forecast.phase}), GiB")
    total = forecast.peak_allocated_bytes
    rows = [*_parts(forecast.components, total), ["peak, allocated", gib(total), ""]]
    if forecast.largest_batch is not None:
        rows.append(["largest batch", f"{forecast.largest_batch:,}", "prompts of the longest length"])
    console.table(rows, right=(1,))


def needed_bytes(forecast: ServingForecast | GenerationForecast) -> int:
    """Return what an engine needs of one GPU."""
    if isinstance(forecast, ServingForecast):
        return sum(size for name, size in forecast.components.items() if name != "unused")
    return forecast.peak_allocated_bytes


def show_simulated_call(
    console: Console,
    formula: ServingForecast | GenerationForecast | None,
    other: ServingForecast | GenerationForecast,
) -> None:
    """Write what a simulation says of an engine beside the formula; parts that both have by their names."""
    from llmsys_exp.report.tier_text import Row, show_rows

    if formula is None:
        return
    theirs, rows = other.components, list[Row]()
    shared = {name: size for name, size in formula.components.items() if name in theirs and name != "unused"}
    rows += [(name.replace("_", " "), size, theirs[name]) for name, size in shared.items()]
    mine, rest = needed_bytes(formula), needed_bytes(other)
    if len(shared) < len(formula.components) and sum(shared.values()) < mine:
        left = rest - sum(theirs[name] for name in shared)
        rows.append(("all else", mine - sum(shared.values()), left))
    rows.append(("needed", mine, rest))
    console.title(f"Beside the {other.tier} tier")
    show_rows(console, rows, other.tier)
    if isinstance(other, ServingForecast) and other.simulated:
        _show_passes(console, other.simulated)
    if isinstance(other, GenerationForecast) and isinstance(formula, GenerationForecast):
        console.line(f"  Highest by formula: {formula.phase}; simulated: {other.phase}.")


def _show_passes(console: Console, simulated: Mapping[str, Any]) -> None:
    """Write what each pass of SGLang's own code took beside what rests, and its largest allocations."""
    for one in simulated["passes"]:
        what = f"a chunk of {one['tokens']} tokens, " if one["kind"] == "prefill" else "a decode step, "
        highest = max(one["model_bytes"], one["sampler_bytes"])
        console.title(f"Largest in {what}{one['requests']} requests ({mib(highest)} MiB in all), MiB")
        rows = [
            [
                mib(row["bytes"] * row["count"]),
                f"{row['count']} x {mib(row['bytes'])}",
                row["operator"] or "-",
                row["module"] or "-",
            ]
            for row in one["largest"]
            if row["bytes"] * row["count"] >= MIB
        ]
        console.table(rows, header=("together", "each", "operator", "module"), right=(0, 1))
    console.line(f"  SGLang {simulated['version']}'s own code of {simulated['model']}, rank 0.")


def _parts(components: Mapping[str, int], total: int) -> list[list[str]]:
    return [
        [name.replace("_", " "), gib(size), _meaning(name, size, total)]
        for name, size in components.items()
        if size > 0
    ]


def _meaning(name: str, size: int, total: int) -> str:
    share = f"{100 * size / total:.0f} %" if total else ""
    return "  ".join(part for part in (share, MEANING.get(name, "")) if part)


def serving_row(plan: ServingPlan) -> dict[str, Any]:
    """Return the row that tables of plans hold of a serving plan (see `report.plan_rows`)."""
    forecast = plan.forecast
    sizes: dict[str, Any] = dict.fromkeys(
        ("required_bytes", "allocated_bytes", "reserved_bytes", "budget_bytes", "headroom_bytes")
    )
    parts: dict[str, int] = {}
    extra: dict[str, Any] = {}
    if isinstance(forecast, ServingForecast):
        parts = {name: size for name, size in forecast.components.items() if name != "unused"}
        needed, budget = needed_bytes(forecast), forecast.free_before_weights_bytes
        sizes |= {"required_bytes": needed, "budget_bytes": budget, "headroom_bytes": budget - needed}
        extra = {"KV tokens": forecast.kv_tokens, "requests": forecast.concurrent_requests_mean}
    elif forecast is not None:
        parts, needed = dict(forecast.components), forecast.peak_allocated_bytes
        sizes |= {"required_bytes": needed, "allocated_bytes": needed, "budget_bytes": forecast.budget_bytes}
        if forecast.budget_bytes is not None:
            sizes["headroom_bytes"] = forecast.budget_bytes - needed
        extra = {} if forecast.largest_batch is None else {"largest batch": forecast.largest_batch}
    largest = max(parts, key=lambda name: parts[name]) if parts else None
    return {
        "verdict": plan.label if forecast is not None and sizes["budget_bytes"] is not None else "no limit",
        **sizes,
        "largest": largest,
        "largest_bytes": parts[largest] if largest else None,
        "components": parts,
        "phases": {},
        "settings": {choice.key: choice.value for choice in plan.choices},
        "chosen": [choice.key for choice in plan.choices if not choice.given],
        "fix": plan.fix,
        "error": None,
        "extra": extra,
    }
