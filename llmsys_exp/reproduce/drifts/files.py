"""Data and model files of then against those that are there now, by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmsys_exp.reproduce.drift import TOKENS, Drift, Effect, short
from llmsys_exp.reproduce.effects import ASKED, HELD_OUT, LOSSES, NOTHING, NUMBERS, ROWS, SHAPE, Reach, worst

_PROMPTS = Reach(Effect.NUMBERS, (TOKENS,))
_PARTS: Mapping[str, Reach] = {"train": ROWS, "heldout": HELD_OUT, "prompts": worst([ASKED, _PROMPTS])}
_ROWS_AND_ANSWERS = worst([ROWS, ASKED])
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".pth")
_UNREAD = (".md", ".gitattributes", ".png", ".msgpack", ".h5", ".onnx", "LICENSE", "LICENSE.txt", ".tflite")


def data_drifts(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Drift]:
    """Yield a drift for each data file that is gone or has another content.

    Args:
        then: `data` of the manifest.
        now: the same of the files as they are found now.
    """
    known, found = then.get("files") or {}, now.get("files") or {}
    for name, was in known.items():
        if not isinstance(was, Mapping) or not was.get("sha256"):
            continue
        if name not in found and not str(was.get("path")).startswith("/"):
            continue  # of the hub, or made up: the worker's own hash is compared once it has read them
        yield from _file("data", name, was, found.get(name), _PARTS.get(name, ROWS))


def model_drifts(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Drift]:
    """Yield a drift for each file of the model that is gone, has come or has another content."""
    known, found = then.get("files") or {}, now.get("files") or {}
    if known and not found:
        yield _gone_model(then, known)
        return
    for name, was in known.items():
        if isinstance(was, Mapping) and was.get("sha256"):
            yield from _file("model", name, was, found.get(name), of_model_file(name))
    # of an old manifest only weights are known, and a file more says nothing
    everything = "config.json" in known
    for name in sorted(found.keys() - known.keys()) if everything else ():
        reach = of_model_file(name)
        if reach is not NOTHING:
            what = f"{name} was not in the model's folder"
            yield Drift("model", name, what, reach.effect, reach.shows_in, now=_hash(found[name]))
    was, revision = then.get("revision"), now.get("revision")
    if was and revision and was != revision:
        what = f"the model's revision is {short(revision)}; it was {short(was)}"
        yield Drift("model", "revision", what, NUMBERS.effect, NUMBERS.shows_in, was, revision)


def of_model_file(name: str) -> Reach:
    """Return what another content of a file of a model folder may change.

    >>> of_model_file("tokenizer.json").shows_in[0], of_model_file("README.md").effect.words
    ('first loss', 'nothing')
    """
    base = name.rpartition("/")[2]
    if base.endswith(_WEIGHTS) or base.endswith(".index.json"):
        return worst([LOSSES, ASKED])
    if base == "generation_config.json":
        return ASKED
    if base.endswith(_UNREAD):
        return NOTHING
    if base.startswith(("tokenizer", "chat_template", "vocab", "merges", "special_tokens", "added_tokens")):
        return _ROWS_AND_ANSWERS
    return SHAPE if base in ("config.json", "adapter_config.json") else NUMBERS


def _file(kind: str, name: str, was: Mapping[str, Any], now: Any, reach: Reach) -> Iterator[Drift]:
    where = was.get("path") or name
    if not isinstance(now, Mapping):
        size = f", {was['bytes']:,} bytes" if isinstance(was.get("bytes"), int) else ""
        rows = f", {was['rows']} rows" if isinstance(was.get("rows"), int) else ""
        what = f"{name} is missing: {where}{size}{rows}, SHA-256 {str(was['sha256'])[:12]}..."
        yield Drift(
            kind,
            name,
            what,
            reach.effect,
            reach.shows_in,
            then=was["sha256"],
            do=_way_to(kind, name),
            blocks=reach is not NOTHING,
        )
    elif now.get("sha256") and now["sha256"] != was["sha256"]:
        what = f"{name} has another content: {now.get('path') or where}{_sizes(was, now)}"
        do = "Put back the file of then; its SHA-256 is in the manifest"
        yield Drift(
            kind, name, what, reach.effect, reach.shows_in, was["sha256"], now["sha256"], do if kind else ""
        )


def _gone_model(then: Mapping[str, Any], known: Mapping[str, Any]) -> Drift:
    total = sum(one.get("bytes") or 0 for one in known.values() if isinstance(one, Mapping))
    size = f", {total / 2**30:.2f} GiB" if total else ""
    revision = f", revision {then['revision']}" if then.get("revision") else ""
    what = f"the model is missing: {then.get('source')}{revision}, {len(known)} files{size}"
    return Drift(
        "model",
        "source",
        what,
        Effect.NUMBERS,
        NUMBERS.shows_in,
        then=then.get("source"),
        do="Name the folder with model.path=FOLDER",
        blocks=True,
    )


def _way_to(kind: str, name: str) -> str:
    if kind == "model":
        return "Copy the file back, or name another folder with model.path=FOLDER"
    keys = {"train": "data.train", "heldout": "data.heldout", "prompts": "inference.prompts"}
    return f"Name the file with {keys[name]}=FILE" if name in keys else "Put the file back"


def _sizes(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = was.get("bytes"), now.get("bytes")
    if not isinstance(old, int) or not isinstance(new, int):
        return ""
    return f" ({new:,} bytes, as many as then)" if old == new else f" ({new:,} bytes; it had {old:,})"


def _hash(entry: Any) -> str | None:
    return entry.get("sha256") if isinstance(entry, Mapping) else None
