"""Drifts planted into recorded runs of a tiny model, and which of them is found and blamed.

PYTHONPATH=tests:tests/integration python tests/integration/planted.py      prints the table
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from forked import run_forked
from tiny_jobs import make_model, rows

from llmsys_exp.config.compose import compose_config
from llmsys_exp.errors import JobError
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.pipeline import run_steps
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce.check import check
from llmsys_exp.reproduce.command import Outcome, compared
from llmsys_exp.reproduce.drift import Drift, Effect
from llmsys_exp.reproduce.effects import Reach, of_code, of_package, of_setting
from llmsys_exp.reproduce.logged import Logged, read_logged
from llmsys_exp.reproduce.now import Now, look
from llmsys_exp.reproduce.rerun import rerun
from llmsys_exp.reproduce.settings import Recreated, recreate
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.manifest import sealed

NUMBERS, MEMORY, SPEED, NOTHING = Effect.NUMBERS, Effect.MEMORY, Effect.SPEED, Effect.NOTHING
TRAIN, ASK = "train", "ask"
Change = Callable[[dict[str, Any]], None]


@dataclass
class World:
    """Two recorded runs, one that trained and one that answered, with what they read."""

    folder: Path
    runs: dict[str, Path] = field(default_factory=dict)
    _now: dict[str, Now] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def data(self) -> Path:
        return self.folder / "rows.json"

    @property
    def heldout(self) -> Path:
        return self.folder / "heldout.json"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.json"

    def logged(self, which: str) -> Logged:
        return read_logged(self.runs[which] / "manifest.json")

    def recreated(self, which: str, overrides: Sequence[str]) -> Recreated:
        return recreate(self.logged(which), overrides, outputs=self.folder / "again")

    def drifts(self, which: str, overrides: Sequence[str], *, afresh: bool) -> list[Drift]:
        """Return what is found; what lies on the disk is looked at again only where it was changed."""
        logged, again = self.logged(which), self.recreated(which, overrides)
        if afresh or overrides or which not in self._now:
            now = look(logged, again.config)
            if not (afresh or overrides):
                self._now[which] = now
        else:
            now = self._now[which]
        return list(check(logged, again, now).drifts)

    def run_again(self, which: str, overrides: Sequence[str], drifts: Sequence[Drift]) -> Outcome:
        logged, again = self.logged(which), self.recreated(which, overrides)
        with quick_workers(), open("/dev/null", "w", encoding="utf-8") as nowhere:
            found = rerun(
                logged,
                again.config,
                command=("llmsys", "reproduce"),
                overrides=(),
                console=Console(nowhere),
                verbose=False,
            )
        return compared(logged, found, again, drifts)


@dataclass(frozen=True)
class Plant:
    """A drift, and what has to be said of it."""

    name: str
    kind: str
    key: str
    effect: Effect
    plant: Callable[[World], Any]
    """A context manager around the check; overrides that it yields are those of the command line."""
    which: str = TRAIN
    afresh: bool = False
    """Whether files that a run reads are changed."""
    runs: bool = False
    """Whether the run is done again, and has to be blamed on this drift."""
    blocks: bool = False


def make_world(folder: Path) -> World:
    """Train and ask the tiny model once, with records as they are always kept."""
    world = World(folder)
    make_model(world.model)
    table = rows()
    for file, part in ((world.data, table[:18]), (world.heldout, table[18:]), (world.prompts, table[:6])):
        file.write_text(json.dumps(part), encoding="utf-8")
    common = ["model=local", f"model.path={world.model}", "hardware=cpu", "data=alpaca", "name=tiny"]
    common += [f"paths.outputs={folder / 'outputs'}", f"paths.cache={folder / 'cache'}", "data.max_length=96"]
    train = [f"data.train={world.data}", f"data.heldout={world.heldout}", "data.score=none", "method=lora"]
    train += ["training.max_steps=3", "training.micro_batch=2", "training.learning_rate=1e-2"]
    ask = [f"inference.prompts={world.prompts}", "inference.sampling.max_new_tokens=6", "steps=[infer]"]
    ask += [f"data.train={world.data}"]
    world.runs[TRAIN] = _run([*common, *train, "training.deterministic=true"])
    world.runs[ASK] = _run([*common, *ask])
    for run in world.runs.values():
        resealed(run, lambda content: content.update(code=None))  # planted by itself
    return world


def _run(overrides: Sequence[str]) -> Path:
    config = compose_config(overrides)
    run = Run(config, list(config.steps), ("llmsys", "train", *overrides), tuple(overrides))
    with quick_workers(), open("/dev/null", "w", encoding="utf-8") as nowhere:
        return Path(run_steps(run, Console(nowhere))["folder"])


@contextmanager
def quick_workers() -> Iterator[None]:
    """Run workers as forks of a process that has imported everything, and draw no pictures."""

    def work(command: Sequence[str], *, log: Path, **_: Any) -> None:
        done = run_forked(command[2], *command[3:])
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode:
            raise JobError(f"The worker ended with {done.returncode}: {done.stdout[-800:]}")

    with (
        mock.patch("llmsys_exp.jobs.shown.run_worker", work),
        mock.patch("llmsys_exp.jobs.pipeline.draw_plots", lambda *_, **__: []),
    ):
        yield


def resealed(run: Path, change: Change) -> None:
    """Change a manifest as another machine, environment or version would have written it."""
    file = run / "manifest.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    write_json(file, sealed(content))


@contextmanager
def kept(file: Path) -> Iterator[Path]:
    """Put a file back at the end."""
    data = file.read_bytes()
    try:
        yield file
    finally:
        file.write_bytes(data)


def _record(change: Change, which: str = TRAIN) -> Callable[[World], Any]:
    @contextmanager
    def plant(world: World) -> Iterator[list[str]]:
        with kept(world.runs[which] / "manifest.json"):
            resealed(world.runs[which], change)
            yield []

    return plant


def _edited(name: str, change: Callable[[str], str], which: str = TRAIN) -> Callable[[World], Any]:
    """Edit a file of the run folder by hand."""

    @contextmanager
    def plant(world: World) -> Iterator[list[str]]:
        with kept(world.runs[which] / name) as file:
            text = file.read_text(encoding="utf-8")
            assert change(text) != text, name
            file.write_text(change(text), encoding="utf-8")
            yield []

    return plant


def _file(find: Callable[[World], Path], change: Callable[[bytes], bytes] | None) -> Callable[[World], Any]:
    """Change a file that the run read, or take it away."""

    @contextmanager
    def plant(world: World) -> Iterator[list[str]]:
        with kept(find(world)) as file:
            if change is None:
                file.unlink()
            else:
                file.write_bytes(change(file.read_bytes()))
            yield []

    return plant


def _says(*overrides: str) -> Callable[[World], Any]:
    @contextmanager
    def plant(world: World) -> Iterator[list[str]]:
        yield list(overrides)

    return plant


def _set(path: str, value: Any) -> Change:
    """Set a value of a manifest by its dotted name."""

    def change(content: dict[str, Any]) -> None:
        *keys, last = path.split("/")
        node = content
        for key in keys:
            node = node[key]
        node[last] = value

    return change


@contextmanager
def _model_gone(world: World) -> Iterator[list[str]]:
    world.model.rename(world.folder / "moved")
    try:
        yield []
    finally:
        (world.folder / "moved").rename(world.model)


@contextmanager
def _setting_has_come(world: World) -> Iterator[list[str]]:
    with ExitStack() as stack:
        for name in ("manifest.json", "job.json"):
            stack.enter_context(kept(world.runs[TRAIN] / name))
        job = json.loads((world.runs[TRAIN] / "job.json").read_text(encoding="utf-8"))
        del job["config"]["training"]["momentum"]
        write_json(world.runs[TRAIN] / "job.json", job)

        def change(content: dict[str, Any]) -> None:
            del content["config"]["training"]["momentum"]
            content["records"] = {}

        resealed(world.runs[TRAIN], change)
        yield []


def _swapped(data: bytes) -> bytes:
    table = json.loads(data)
    table[0], table[7] = table[7], table[0]
    return json.dumps(table).encode()


def _answer_changed(data: bytes) -> bytes:
    table = json.loads(data)
    table[1]["output"] = "item: sofa | count: 9"
    return json.dumps(table).encode()


def _prompt_changed(data: bytes) -> bytes:
    table = json.loads(data)
    table[2]["input"] = "9 violet sofas please"
    return json.dumps(table).encode()


def _weight_changed(data: bytes) -> bytes:
    # in the middle of a matrix: the last bytes of a float, turned over
    at = len(data) // 2
    return data[:at] + bytes(255 - one for one in data[at : at + 400]) + data[at + 400 :]


def _log(change: Callable[[list[str]], list[str]]) -> Callable[[World], Any]:
    return _edited("metrics.jsonl", lambda text: "".join(change(text.splitlines(keepends=True))))


def _second_loss(lines: list[str]) -> list[str]:
    row = json.loads(lines[1])
    row["train/loss"] *= 0.9
    return [lines[0], json.dumps(row) + "\n", *lines[2:]]


def _answers_edited(text: str) -> str:
    first, *rest = text.splitlines(keepends=True)
    row = json.loads(first)
    row["output"] = "what it should have said"
    return json.dumps(row) + "\n" + "".join(rest)


def _on_gpu(change: Change) -> Change:
    """The record of a run on two cards, as far as the check looks at it."""

    def both(content: dict[str, Any]) -> None:
        card = {"name": "NVIDIA H200", "memory_bytes": 150 << 30, "uuid": "GPU-1", "in_run": True}
        content["inputs"] |= {"device": "cuda", "world_size": 2}
        content["machine"] |= {"gpus": [card], "driver": "590.1", "nccl": "2.27.3"}
        change(content)

    return both


@contextmanager
def _other_nccl(world: World) -> Iterator[list[str]]:
    seen = world.drifts(TRAIN, [], afresh=False)  # so that there is something to change
    assert seen is not None
    here = world._now[TRAIN]
    card = {"name": "NVIDIA H200", "memory_bytes": 150 << 30, "uuid": "GPU-2", "in_run": True}
    gpus = {"gpus": [card], "driver": "595.0", "nccl": "2.28.1"}
    world._now[TRAIN] = replace(here, machine={**here.machine, **gpus})
    try:
        with _record(_on_gpu(lambda content: None))(world):
            yield []
    finally:
        world._now[TRAIN] = here


def _weights(world: World) -> Path:
    return world.model / "model.safetensors"


PLANTS = (
    Plant("two rows swapped", "data", "train", NUMBERS, _file(lambda w: w.data, _swapped), afresh=True, runs=True),
    Plant(
        "a held-out answer changed", "data", "heldout", NUMBERS, _file(lambda w: w.heldout, _answer_changed),
        afresh=True, runs=True,
    ),
    Plant("the data file is gone", "data", "train", NUMBERS, _file(lambda w: w.data, None), afresh=True, blocks=True),
    Plant(
        "a byte of the data file more", "data", "train", NUMBERS, _file(lambda w: w.data, lambda data: data + b"\n"),
        afresh=True,
    ),
    Plant("weights changed", "model", "model.safetensors", NUMBERS, _file(_weights, _weight_changed), afresh=True,
          runs=True),
    Plant(
        "the chat template changed", "model", "chat_template.jinja", NUMBERS,
        _file(lambda w: w.model / "chat_template.jinja", lambda data: data.replace(b"\n", b" ")), afresh=True, runs=True,
    ),
    Plant(
        "the tokenizer changed", "model", "tokenizer_config.json", NUMBERS,
        _file(lambda w: w.model / "tokenizer_config.json", lambda data: data + b" "), afresh=True,
    ),
    Plant(
        "the shape changed", "model", "config.json", NUMBERS,
        _file(lambda w: w.model / "config.json", lambda data: data.replace(b"1e-06", b"1e-05") + b" "), afresh=True,
    ),
    Plant("the weights are gone", "model", "model.safetensors", NUMBERS, _file(_weights, None), afresh=True, blocks=True),
    Plant("the model folder moved", "model", "source", NUMBERS, _model_gone, afresh=True, blocks=True),
    Plant(
        "another learning rate", "command line", "training.learning_rate", NUMBERS,
        _says("training.learning_rate=9e-3"), runs=True,
    ),
    Plant("another seed", "command line", "seed", NUMBERS, _says("seed=7"), runs=True),
    Plant("another type", "command line", "training.dtype", NUMBERS, _says("training.dtype=bf16"), runs=True),
    Plant("another rank", "command line", "method.lora.r", NUMBERS, _says("method.lora.r=4"), runs=True),
    Plant("another template", "command line", "data.template", NUMBERS, _says("data.template=alpaca"), runs=True),
    Plant("fewer steps", "command line", "training.max_steps", NUMBERS, _says("training.max_steps=2"), runs=True),
    Plant("shorter rows", "command line", "data.max_length", NUMBERS, _says("data.max_length=24")),
    Plant("another schedule", "command line", "training.scheduler", NUMBERS, _says("training.scheduler=constant")),
    Plant("more checkpoints", "command line", "checkpoint.every", SPEED, _says("checkpoint.every=1")),
    Plant(
        "a metric edited", "record", "manifest.json", NUMBERS, blocks=True,
        plant=_edited("manifest.json", lambda text: text.replace('"loss": 5.', '"loss": 4.', 1)),
    ),
    Plant(
        "a setting edited", "record", "seed", NUMBERS,
        plant=_edited("manifest.json", lambda text: text.replace('"seed": 1234', '"seed": 4321', 1)),
    ),
    Plant("a loss in the log edited", "record", "metrics.jsonl", NUMBERS, _log(_second_loss), runs=True),
    Plant("the log cut", "record", "metrics.jsonl", NUMBERS, _log(lambda lines: lines[:-1])),
    Plant(
        "job.json edited", "record", "training.weight_decay", NUMBERS,
        _edited("job.json", lambda text: text.replace('"weight_decay": 0.0', '"weight_decay": 0.5')),
    ),
    Plant(
        "results edited", "record", "results/train.json", NUMBERS,
        _edited("results/train.json", lambda text: text.replace('"steps": 3', '"steps": 4')),
    ),
    Plant("another torch", "packages", "torch", NUMBERS, _record(_set("environment/packages/torch", "2.9.1"))),
    Plant(
        "another tokenizers", "packages", "tokenizers", NUMBERS,
        _record(_set("environment/packages/tokenizers", "0.20.0")),
    ),
    Plant("a package gone", "packages", "liger-kernel", NUMBERS,
          _record(_set("environment/packages/liger_kernel", "0.6.0"))),
    Plant("another linter", "packages", "others", NOTHING, _record(_set("environment/packages/ruff", "0.0.1"))),
    Plant("another Python", "python", "python", NUMBERS, _record(_set("environment/python", "3.9.1"))),
    Plant("another processor", "hardware", "cpu_name", NUMBERS, _record(_set("machine/cpu_name", "Other CPU"))),
    Plant("other cores", "hardware", "cpus", NUMBERS, _record(_set("machine/cpus", 96))),
    Plant("another machine like it", "hardware", "host", SPEED, _record(_set("machine/host", "0" * 16))),
    Plant("another GPU", "hardware", "gpus", NUMBERS, _record(_on_gpu(lambda content: None))),
    Plant("another NCCL", "driver", "nccl", NUMBERS, _other_nccl),
    Plant("another driver", "driver", "driver", MEMORY, _other_nccl),
    Plant("another card of the kind", "hardware", "uuid", SPEED, _other_nccl),
    Plant(
        "threads set in the shell", "variables", "OMP_NUM_THREADS", NUMBERS,
        _record(_set("environment/variables/OMP_NUM_THREADS", "64")),
    ),
    Plant("a setting that is gone", "settings", "training.old_trick", NUMBERS,
          _record(_set("config/training/old_trick", 3))),
    Plant("a setting that has come", "settings", "training.momentum", NOTHING, _setting_has_come),
    Plant("another default", "plan", "training.adam_eps", NOTHING, _record(_set("config/training/adam_eps", 1e-6))),
    Plant(
        "a prompt changed", "data", "prompts", NUMBERS, _file(lambda w: w.prompts, _prompt_changed),
        which=ASK, afresh=True, runs=True,
    ),
    Plant("drawn, not greedy", "command line", "inference.sampling.temperature", NUMBERS,
          _says("inference.sampling.temperature=2.0"), which=ASK, runs=True),
    Plant("an answer edited", "record", "generations.jsonl", NUMBERS,
          _edited("generations.jsonl", _answers_edited, ASK), which=ASK),
)  # fmt: skip


def _decoy(kind: str, key: str, reach: Reach) -> Drift:
    return Drift(kind, key, f"{key} (a decoy)", reach.effect, reach.shows_in)


DECOYS = (
    _decoy("code", "llmsys_exp/workers/training/loop.py", of_code("llmsys_exp/workers/training/loop.py")),
    _decoy("code", "llmsys_exp/workers/export/merge.py", of_code("llmsys_exp/workers/export/merge.py")),
    _decoy("code", "llmsys_exp/jobs/pipeline.py", of_code("llmsys_exp/jobs/pipeline.py")),
    _decoy("settings", "training.gone", of_setting("training.gone")),
    _decoy("settings", "inference.gone", of_setting("inference.gone")),
    _decoy("packages", "llmsys-exp", of_package("llmsys-exp")),
)
"""Drifts that are listed beside the planted one when a failure is to be blamed, and are not its cause."""


def find(world: World, plant: Plant) -> tuple[list[Drift], Outcome | None]:
    """Plant a drift and return what is found, and what came of the run where it is done again."""
    with plant.plant(world) as overrides:
        drifts = world.drifts(plant.which, overrides, afresh=plant.afresh)
        outcome = world.run_again(plant.which, overrides, [*drifts, *DECOYS]) if plant.runs else None
    return drifts, outcome


def matching(plant: Plant, drifts: Sequence[Drift]) -> Drift | None:
    """Return the drift that was planted, where it is among those found."""
    named = (one for one in drifts if (one.kind, one.key) == (plant.kind, plant.key))
    return next((one for one in named if one.effect == plant.effect and one.blocks == plant.blocks), None)


def table(world: World, plants: Sequence[Plant] = PLANTS) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each drift."""
    for plant in plants:
        drifts, outcome = find(world, plant)
        cause = outcome.causes[0].drift if outcome and outcome.causes else None
        right = cause is not None and (cause.kind, cause.key) == (plant.kind, plant.key)
        yield {
            "drift": plant.name,
            "found": matching(plant, drifts) is not None,
            "as": f"{plant.kind}: {plant.key}",
            "effect": plant.effect.words,
            "listed": len(drifts),
            "blamed": "-" if outcome is None else ("right" if right else f"{cause and cause.what}"),
        }


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        world = make_world(Path(scratch))
        for row in table(world, PLANTS[int(sys.argv[1]) if len(sys.argv) > 1 else 0 :]):
            print(f"{row['drift']:<28}", *(f"{row[key]}" for key in ("found", "as", "effect", "listed", "blamed")),
                  sep="  |  ", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
