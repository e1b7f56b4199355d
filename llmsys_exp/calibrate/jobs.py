"""Short jobs on this machine's GPUs, through the ordinary training worker, whose records are measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.calibrate.device import Device, devices_here
from llmsys_exp.errors import DoesNotFit, UserError, unknown_name
from llmsys_exp.launch.gpus import installed_cards, machine_has_gpus, visible_entries
from llmsys_exp.report.console import Console
from llmsys_exp.runs.files import disk_errors, write_json
from planner.tables import gpu, gpu_names

NAME = "calibrate"
ROWS, WORDS = 64, 1200
"""Rows of so many words are longer than `LENGTH` tokens, so that no batch is padded."""
LENGTH, STEPS = 1024, 8
SHAPES = (
    ("model=qwen2_5_0_5b", "method=full", 4),
    ("model=qwen2_5_0_5b", "method=lora", 8),
    ("model=llama3_2_1b", "method=lora", 4),
)
"""Model, method, and micro-batch: large enough that the GPU has something to do."""
LARGE_GIB = 40
"""Smaller cards get a quarter of the micro-batch."""
PAIRED = 2
"""So many of the shapes also run on two GPUs, where there are two."""


def gpu_here() -> Device:
    """Return the GPU that is measured.

    Raises:
        UserError: where there is none, or the planner has no row for it.
    """
    found = [device for device in devices_here() if not device.on_cpu] if machine_has_gpus() else []
    if not found:
        raise UserError(
            "This machine has no GPU to measure",
            where="llmsys calibrate --measure",
            do="Run it where the GPU is; past runs will do as well: llmsys calibrate --from outputs",
        )
    if not found[0].kind:
        raise unknown_name("GPU of the planner", found[0].name, gpu_names(), where="planner/data/gpus.yaml")
    if len(found) > 1:
        names = ", ".join(device.name for device in found)
        raise UserError(
            "This machine has GPUs of several kinds",
            where=names,
            do="Train on each kind with launcher.gpus=[...], then: llmsys calibrate --from outputs",
        )
    return found[0]


def gpus_to_use(env: dict[str, str]) -> int:
    """Return how many GPUs are visible, two at most."""
    visible = visible_entries(env, installed_cards())
    return min(2, 1 if visible is None else len(visible))


def commands(device: Device, gpus: int, outputs: Path, more: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job."""
    shared = [
        *(
            "model.weights=random",
            "data.name=words",
            f"data.train={rows_file(outputs)}",
            "data.heldout=null",
        ),
        *(f"data.max_length={LENGTH}", "data.train_on_prompt=true", "offload=none"),
        *(f"hardware.gpu={device.kind}", f"training.max_steps={STEPS}", "training.evaluate=false"),
        *("training.grad_accum=1", "training.gradient_checkpointing=false", "training.learning_rate=1e-6"),
        *("steps=[train]", f"name={NAME}", f"paths.outputs={outputs}"),
    ]
    share = 1 if gpu(device.kind).memory_gib >= LARGE_GIB else 4
    shapes = [[model, method, f"training.micro_batch={micro // share}"] for model, method, micro in SHAPES]
    jobs = [[*shape, "zero=stage0", "hardware.gpus_per_node=1"] for shape in shapes]
    if gpus > 1:
        jobs += [[*shape, "zero=stage2", "hardware.gpus_per_node=2"] for shape in shapes[:PAIRED]]
    return [[*job, *shared, *more] for job in jobs]


def run_jobs(jobs: Sequence[Sequence[str]], outputs: Path, console: Console) -> list[Path]:
    """Run the jobs one after the other, and return their manifests; what does not fit is left out.

    Raises:
        UserError: when a job fails, or none fits.
    """
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.config.schema import Step
    from llmsys_exp.jobs.job import Run
    from llmsys_exp.jobs.pipeline import run_steps

    write_rows(outputs)
    done: list[Path] = []
    for number, overrides in enumerate(jobs, start=1):
        console.title(f"Job {number} of {len(jobs)}: {' '.join(overrides[:5])}")
        config = compose_config(list(overrides))
        command = ("llmsys", "train", *overrides)
        try:
            manifest = run_steps(Run(config, [Step.train], command, overrides), console)
        except DoesNotFit as refused:
            console.line(f"  left out: {refused}")
            continue
        done.append(Path(manifest["folder"]) / "manifest.json")
    if not done:
        raise UserError(
            "None of the jobs fits this GPU", do="Free its memory: llmsys doctor shows who holds it"
        )
    return done


def rows_file(outputs: Path) -> Path:
    """Return where `write_rows` puts them."""
    return outputs.absolute() / NAME / "rows.json"


def write_rows(outputs: Path) -> None:
    """Write rows that all fill `LENGTH` tokens."""
    words = ("lamp", "chair", "desk", "red", "blue", "two", "three", "please")
    text = " ".join(words[number % len(words)] for number in range(WORDS))
    file = rows_file(outputs)
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, [{"instruction": f"{number} {text}", "output": "done"} for number in range(ROWS)])
