"""A plan as text: verdict first, reason second, remedy third, then the tables behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.calibrate.apply import PREFIX as CALIBRATED
from llmsys_exp.config.schema import Config
from llmsys_exp.plan.budget import host_memory_gib
from llmsys_exp.report.console import VERDICT_STYLES, Console, gib, mib
from llmsys_exp.report.plan_rows import highest_phases
from planner.forecast import ESTIMATE, Forecast
from planner.units import GIB

if TYPE_CHECKING:
    from llmsys_exp.plan import Choice, Plan

SHOWN_SHARE = 0.005
SMALL_BYTES = GIB // 4
"""A job whose peak is below this is told in MiB."""
NO_LIMIT = "not compared with a limit"
NOT_FORECAST = "not forecast"


def show_plan(console: Console, plan: Plan) -> None:
    """Write the whole plan: verdict, memory, host memory, settings with reasons."""
    show_verdict(console, plan)
    if plan.forecast is not None:
        show_memory(console, plan)
    show_settings(console, plan)


def show_verdict(console: Console, plan: Plan) -> None:
    """Write verdict, reason and remedy, one line each."""
    if plan.verdict is None:
        console.line(console.style(NOT_FORECAST, "bold"))
        console.line(f"  The formula does not know this model's family, and {plan.why_not}.")
        return
    label = plan.verdict.label if has_limit(plan.config) else NO_LIMIT
    console.line(console.style(label, "bold", VERDICT_STYLES.get(label, "bold")))
    for text in verdict_lines(plan):
        console.line(f"  {text}")


def verdict_lines(plan: Plan) -> list[str]:
    """Return reason and remedy of a plan's verdict."""
    forecast, verdict = plan.known
    need = f"{place(plan.config)} needs {gib(forecast.required_bytes)} GiB"
    low, high = verdict.band_bytes
    band = f"Between {gib(low)} and {gib(high)} GiB, going by {_evidence(forecast)}"
    widened = verdict.band_bytes != forecast.band_bytes("required")
    band += " and by what its simulation says." if widened else "."
    if has_limit(plan.config):
        left = verdict.headroom_bytes
        rest = f"{gib(left)} GiB left" if left >= 0 else f"{gib(-left)} GiB too little"
        need += f" of the {gib(verdict.budget_bytes)} GiB it may use: {rest}."
    else:
        need += "; set hardware.host_memory_gib to compare it with this machine."
    lines = [need]
    if verdict.largest:
        size = forecast.components.get(verdict.largest)
        lines.append(
            f"Largest part: {verdict.largest}" + (f", {gib(size)} GiB." if size is not None else ".")
        )
    lines.append(band)
    if verdict.fix:
        lines.append(f"It would fit with {verdict.fix}.")
    elif plan.step_s is not None and plan.tokens_per_s is not None:
        lines.append(f"About {plan.step_s:.2f} s a step, {plan.tokens_per_s:,.0f} tokens/s (estimate).")
    return [*lines, *(f"{note}." for note in forecast.notes if note.startswith(CALIBRATED))]


def show_memory(console: Console, plan: Plan) -> None:
    """Write the parts at the peak, the peak of each phase and the host's share."""
    forecast, _ = plan.known
    total = forecast.peak_allocated_bytes
    unit, write = ("MiB", mib) if total < SMALL_BYTES else ("GiB", gib)
    console.title(f"Memory on {place(plan.config).lower()}, {unit} ({forecast.tier} forecast)")
    parts = sorted(forecast.components.items(), key=lambda item: -item[1])
    shown = [(name, size) for name, size in parts if size >= SHOWN_SHARE * total]
    rest = total - sum(size for _, size in shown)
    shown += [("smaller parts", rest)] if rest else []
    rows = [[name, write(size), _share(size, total)] for name, size in shown]
    rows += [
        ["peak, allocated", write(forecast.peak_allocated_bytes), "live tensors at the worst moment"],
        ["needed", write(forecast.required_bytes), "smallest limit that does not fail"],
        [
            "device in use",
            write(forecast.device_used_bytes),
            "with context, libraries, and cache if there is room",
        ],
    ]
    console.table(rows, right=(1,))
    if forecast.phases:
        console.title(f"Peak of each phase, {unit}")
        phases = highest_phases(forecast.phases)
        console.table([[name, write(size)] for name, size in phases.items()], right=(1,))
    host = {name: size for name, size in forecast.host.items() if size}
    if host:
        console.title("Main memory of each node, GiB")
        rows = [[name, gib(size)] for name, size in host.items()]
        console.table([*rows, ["most at one time", gib(forecast.host_peak_bytes)]], right=(1,))


def show_settings(console: Console, plan: Plan) -> None:
    """Write each choice of the planner with its reason; what the user gave is marked as such."""
    show_choices(console, plan.choices)


def show_choices(console: Console, choices: Sequence[Choice]) -> None:
    """Write settings with their reasons."""
    console.title("Settings")
    rows = [
        [choice.key, show_value(choice.value), "given" if choice.given else "chosen", choice.reason]
        for choice in choices
    ]
    console.table(rows)


def place(config: Config) -> str:
    """Name where the memory is: each GPU, or each rank on the CPU."""
    hardware = config.hardware
    count = hardware.gpus_per_node * hardware.nodes
    if hardware.gpu == "cpu":
        return "The CPU" if count == 1 else f"Each of {count} CPU ranks"
    return f"The {hardware.gpu}" if count == 1 else f"Each of {count} x {hardware.gpu}"


def has_limit(config: Config) -> bool:
    """Return whether anything says how much memory there is."""
    if config.hardware.gpu != "cpu" or config.hardware.host_memory_gib is not None:
        return True
    return host_memory_gib() is not None


def show_value(value: Any) -> str:
    """Write a setting's value as the command line would take it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show_value(item)}" for key, item in value.items()) + "}"
    return str(getattr(value, "name", value))


def _evidence(forecast: Forecast) -> str:
    residuals = forecast.residuals
    formula = "the formula's errors on " if forecast.tier == ESTIMATE else ""
    if not residuals.rows:
        return f"{formula}the widest of all classes ({residuals.name})"
    return f"{formula}{residuals.rows} measured jobs of its class ({residuals.name})"


def _share(size: int, total: int) -> str:
    return f"{100 * size / total:.0f} %" if total else ""
