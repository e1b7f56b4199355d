"""The figures that a run is judged by, as cards, and what it ran with and on, as facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmsys_exp.report.console import duration
from llmsys_exp.report.inference_summary import inference_rows
from llmsys_exp.report.pages.layout import shown
from llmsys_exp.report.pages.run_settings import plain_text
from llmsys_exp.report.summary import life_lines
from llmsys_exp.runs.told import Told, part
from llmsys_exp.sweeps.results.figures import run_figures
from planner.units import GIB, KIB, MIB

Facts = list[tuple[str, str]]
Card = dict[str, Any]
_ELSEWHERE = (
    "packages", "variables", "interpreter_of", "gpus", "files", "fingerprint", "left_out", "untracked",
)  # fmt: skip
MOST_NAMES = 8
HASH_SIGNS = 12
_UNITS = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def figure_cards(told: Told, problems: list[str]) -> list[Card]:
    """Return what came out: `title`, figures with what they are, and facts.

    Args:
        told: the run.
        problems: takes what is wrong with parts that somebody has edited.
    """
    figures = run_figures(told)
    kinds: tuple[Callable[[], Card | None], ...] = (
        lambda: _training(told, figures),
        lambda: _memory(figures),
        lambda: _inference(told),
        lambda: _serving(told),
        lambda: _energy(told),
        lambda: _exported(told, "export", "Export"),
        lambda: _exported(told, "quantize", "Quantised"),
    )
    cards = [part(make, None, problems) for make in kinds]
    return [card for card in cards if card is not None and (card["figures"] or card["facts"])]


def environment_facts(told: Told) -> list[tuple[str, Facts]]:
    """Return what the run ran with and on, by heading; lists of files and packages stand elsewhere."""
    code = told.group("code")
    parts: list[tuple[str, Facts]] = [
        ("Programs", _flat(told.group("environment"))),
        ("Machine", _flat(told.group("machine")) + _gpus(told)),
        ("Code", _flat(code) + _left_out(code)),
        ("Model", _flat(told.group("model")) + _files(told.group("model", "files"))),
        ("Data", _flat(told.group("data")) + _files(told.group("data", "files"))),
        ("Seeds", _flat(told.group("seeds"))),
        ("Variables", [(name, str(text)) for name, text in told.group("environment", "variables").items()]),
        ("Other interpreters", _flat(told.group("environment", "interpreter_of"))),
    ]
    return [(title, facts) for title, facts in parts if facts]


def _training(told: Told, figures: Mapping[str, Any]) -> Card | None:
    train = told.group("results", "train")
    if not train and figures["loss_last"] is None:
        return None
    name = figures["score_name"] or "score"
    found = [
        ("held-out loss", figures["heldout_loss"], figures["heldout_loss_before"]),
        (f"held-out {name}", figures["score"], figures["score_before"]),
        ("training loss", figures["loss_last"], figures["loss_first"]),
    ]
    return {
        "title": "Training",
        "figures": [(title, shown(now), shown(before)) for title, now, before in found if now is not None],
        "facts": [
            ("done", _done(train)),
            *[("on the way", text) for text in life_lines(train)],
            ("speed", _speed(figures["tokens_per_s"])),
            ("estimate", _speed(figures["planned_tokens_per_s"])),
            ("MFU", "" if figures["mfu"] is None else f"{100 * figures['mfu']:.1f} %"),
        ],
    }


def _speed(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f"{shown(tokens_per_s)} tokens/s"


def _done(train: Mapping[str, Any]) -> str:
    unit = str(train.get("unit") or "token")
    count, seconds = train.get(f"{unit}s"), train.get("seconds")
    parts = [f"{train.get('steps')} steps"] if train.get("steps") is not None else []
    parts += [f"{shown(count)} {unit}s"] if count is not None else []
    return ", ".join(parts) + (f" in {duration(seconds)}" if isinstance(seconds, (int, float)) else "")


def _memory(figures: Mapping[str, Any]) -> Card | None:
    measured, planned = figures["peak_measured_gib"], figures["peak_planned_gib"]
    if measured is None and figures["gpu_planned_gib"] is None:
        return None
    off = "" if figures["peak_off"] is None else f"{100 * figures['peak_off']:+.1f} %"
    return {
        "title": "Memory, GiB",
        "figures": [] if measured is None else [("measured peak of a rank", shown(measured), "")],
        "facts": [
            ("planned", shown(planned if planned is not None else figures["gpu_planned_gib"])),
            ("off by", off),
            ("main memory", _both(figures["host_measured_gib"], figures["host_planned_gib"])),
            ("disk, planned", shown(figures["disk_planned_gib"])),
        ],
    }


def _both(measured: float | None, planned: float | None) -> str:
    said = [f"{shown(measured)} measured"] if measured is not None else []
    return ", ".join([*said, *([f"{shown(planned)} planned"] if planned is not None else [])])


def _inference(told: Told) -> Card | None:
    infer = told.group("results", "infer")
    if not infer:
        return None
    score = (infer.get("score_name") or "score", infer.get("score"))
    found = [("new tokens/s", infer.get("tokens_per_s")), score]
    return {
        "title": " ".join(filter(None, ("Answers", infer.get("engine"), infer.get("engine_version")))),
        "figures": [(str(name), shown(value), "") for name, value in found if value is not None],
        "facts": [(name, text) for name, text in inference_rows(infer)],
    }


def _serving(told: Told) -> Card | None:
    """How the engine was started; its choices are among the settings, its forecast has charts."""
    serving = told.group("serving")
    facts = _flat({key: serving.get(key) for key in ("arguments", "work", "notes")})
    return {"title": "The engine's work", "figures": [], "facts": facts} if facts else None


def _exported(told: Told, step: str, title: str) -> Card | None:
    facts = [(name, text) for name, text in _flat(told.group("results", step)) if "sha256" not in name]
    return {"title": title, "figures": [], "facts": facts} if facts else None


def _energy(told: Told) -> Card | None:
    energy = told.record["energy_wh"]
    if not isinstance(energy, (int, float)):
        return None
    return {"title": "Energy", "figures": [("Wh of its GPUs", shown(energy), "")], "facts": []}


def _flat(content: Mapping[str, Any], above: str = "") -> Facts:
    """Return groups in groups as one list; large lists that stand elsewhere are left out."""
    facts: Facts = []
    for key, value in content.items():
        if key in _ELSEWHERE or value in (None, [], {}, ""):
            continue
        name = f"{above}{str(key).replace('_bytes', ' size')}".replace("_", " ")
        if isinstance(value, Mapping):
            facts += _flat(value, f"{name}, ")
        else:
            facts.append((name, _figure(str(key), value)))
    return facts


def _figure(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "bytes" in key:
            return size_text(value)
        if key.endswith("seconds"):
            return duration(value)
        return shown(value)
    return plain_text(_short(key, value))


def _short(key: str, value: Any) -> Any:
    """Cut a hash to what tells it apart."""
    return f"{value[:HASH_SIGNS]}…" if key.endswith("sha256") and isinstance(value, str) else value


def size_text(size_bytes: float) -> str:
    """Write a size in the unit in which it is a number of some digits."""
    unit, scale = next((one for one in _UNITS if abs(size_bytes) >= one[1]), ("bytes", 1))
    return f"{shown(size_bytes / scale)} {unit}"


def _gpus(told: Told) -> Facts:
    gpus = told.group("machine").get("gpus")
    return [
        (f"GPU {place}", ", ".join(f"{name} {text}" for name, text in _flat(one)))
        for place, one in enumerate(gpus if isinstance(gpus, list) else [])
        if isinstance(one, dict)
    ]


def _left_out(code: Mapping[str, Any]) -> Facts:
    lists = {name: code.get(name) for name in ("untracked", "left_out")}
    return [
        (name.replace("_", " "), _names(value)) for name, value in lists.items() if isinstance(value, list)
    ]


def _names(listed: list[Any]) -> str:
    more = len(listed) - MOST_NAMES
    return plain_text(listed[:MOST_NAMES]) + (f" and {more} more, see manifest.json" if more > 0 else "")


def _files(files: Mapping[str, Any]) -> Facts:
    return [
        (str(name), plain_text({key: _short(key, value) for key, value in one.items() if value is not None}))
        for name, one in files.items()
        if isinstance(one, dict)
    ]
