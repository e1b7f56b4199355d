"""The last page of a run: what got better, planned against measured, the files, and what to try next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmsys_exp.config.schema import Config, Step
from llmsys_exp.plan.case import planner_case
from llmsys_exp.report.console import Console, duration, gib
from llmsys_exp.report.inference_summary import show_inference
from llmsys_exp.report.parallelism import show_parallelism
from llmsys_exp.runs.facts import Finished
from llmsys_exp.runs.files import read_jsonl
from llmsys_exp.runs.measured import MemoryRow, widest_tokens
from llmsys_exp.runs.paths import RunPaths
from planner import forecast_training
from planner.forecast import FORMULA

SHOWN_ANSWERS = 2


def show_summary(console: Console, paths: RunPaths, done: Finished, *, notes: Sequence[str]) -> None:
    """Write the summary of a finished run."""
    console.title(f"Done in {duration(done.timing_s['total'])}")
    if done.attempts:
        count = f"{len(done.attempts)} attempt{'s' if len(done.attempts) > 1 else ''}"
        console.line(f"  {count} before this one ran out of memory: {paths.attempts.name}")
    if "train" in done.results:
        planned = None if done.asked.plan is None else done.asked.plan.tokens_per_s
        _show_training(console, done.results["train"], planned_tokens_per_s=planned)
    if "parallelism" in done.results:
        show_parallelism(console, done.results["parallelism"])
    if done.memory:
        _show_memory(console, done.memory)
        for line in shorter_than_planned(done):
            console.line(f"  {line}")
    if "infer" in done.results:
        show_inference(console, done.results["infer"])
    _show_answers(console, paths)
    _show_files(console, paths)
    for note in notes:
        console.line(console.style(f"  note: {note}", "yellow"))
    console.title("Try next")
    for line in next_commands(paths, done.asked.config, done.asked.overrides):
        console.line(f"  {line}")


def next_commands(paths: RunPaths, config: Config, overrides: Sequence[str]) -> list[str]:
    """Return commands that follow from this run, ready to paste."""
    commands = []
    if paths.merged.is_dir() and config.inference.prompts:
        model = f"model=local model.path={_short(paths.merged)}"
        commands.append(f"llmsys infer {model} inference.prompts={config.inference.prompts}")
    elif paths.adapter.is_dir() and not paths.merged.is_dir():
        commands.append(f"llmsys export {_short(paths.folder)}")
    same = shlex.join(overrides)
    # the overrides of a run that was taken up again are only those of the last time
    if paths.adapter.is_dir() and config.resume is None:
        commands.append(f"llmsys train {same} method.lora.r={2 * config.method.lora.r}".replace("  ", " "))
    if list(config.steps) != [Step.infer]:
        commands.append("llmsys plan model=llama2_7b hardware=a100_80gb hardware.gpus_per_node=4")
    commands.append("llmsys runs")
    return commands


def _show_memory(console: Console, memory: Sequence[MemoryRow]) -> None:
    console.title("Memory of one rank, GiB")
    rows = [
        [row.name, gib(row.planned_bytes), gib(row.measured_bytes), f"{100 * row.difference:+.0f} %", row.how]
        for row in memory
    ]
    console.table(rows, header=("", "planned", "measured", "off by", "measured as"), right=(1, 2, 3))


def shorter_than_planned(done: Finished) -> list[str]:
    """Say what the plan is for the widest batch there was, where that fell short of `data.max_length`."""
    plan, widest = done.asked.plan, widest_tokens(done.results.get("train", {}))
    if plan is None or plan.forecast is None:
        return []
    config = plan.config
    planned = int(config.data.max_length)
    if not 0 < widest < planned:
        return []
    text = f"The widest batch had {widest} tokens a row, and {planned} are planned for"
    if plan.forecast.tier != FORMULA:
        return [text]
    case = replace(planner_case(config, dtype=config.training.dtype.value), seq_len=widest)
    peak = gib(forecast_training(case).highest_bytes)
    return [f"{text}; of {widest} the plan is a peak of {peak} GiB allocated"]


def _show_training(
    console: Console, train: Mapping[str, Any], *, planned_tokens_per_s: float | None = None
) -> None:
    evaluation = train.get("evaluation") or {}
    before, after = evaluation.get("before"), evaluation.get("after")
    rows = []
    if before and after:
        rows.append(
            ["held-out loss", f"{before['loss']:.3f}", f"{after['loss']:.3f}", _margin(before, after, "loss")]
        )
        if "score" in after:
            name = f"held-out {after['score_name']}"
            rows.append(
                [name, f"{before['score']:.3f}", f"{after['score']:.3f}", _margin(before, after, "score")]
            )
    loss = train["loss"]
    rows.append(["training loss", f"{loss['first']:.3f}", f"{loss['last']:.3f}", "first and last step"])
    console.table(rows, header=("", "before", "after", ""), right=(1, 2))
    units = f"{train.get('unit', 'token')}s"
    done = f"{train['steps']} steps, {train[units]:,} {units} in {duration(train['seconds'])}"
    console.line(f"  {done}: {_speed(train, planned_tokens_per_s)}")
    for line in life_lines(train):
        console.line(f"  {line}")


def life_lines(train: Mapping[str, Any]) -> list[str]:
    """Say what a run went through, where it was anything out of the ordinary."""
    lines, best = [], train.get("best") or {}
    if best.get("loss") is not None:
        early = ", and training stopped early" if train.get("stopped_early") else ""
        lines.append(f"lowest held-out loss {best['loss']:.3f} after step {best['step']}{early}")
    if train.get("resumed_from"):
        lines.append(f"taken up again after step {', '.join(map(str, train['resumed_from']))}")
    if train.get("bad_steps"):
        lines.append(f"{train['bad_steps']} steps were left out: their loss or gradient was no number")
    if train.get("overflow_steps"):
        lines.append(f"{train['overflow_steps']} steps overflowed fp16 and were left out by its loss scaling")
    return lines


def _speed(train: Mapping[str, Any], planned_tokens_per_s: float | None) -> str:
    """Say how fast it was once it was warm, beside the estimate."""
    speed = train.get("speed") or {}
    units = f"{train.get('unit', 'token')}s"
    key = f"{units}_per_s"
    text = f"{speed.get(key, train[key]):,.0f} {units}/s"
    if planned_tokens_per_s is not None:
        text += f" (estimate {planned_tokens_per_s:,.0f})"
    if "mfu" in speed:
        text += f", MFU {100 * speed['mfu']:.1f} %"
    return text


def _margin(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    gain = after[key] - before[key]
    better = gain < 0 if key == "loss" else gain > 0
    word = "better" if better else ("unchanged" if gain == 0 else "worse")
    return (
        f"{word} by {abs(gain):.3f} on {after['rows']} rows" if gain else f"unchanged on {after['rows']} rows"
    )


def _show_answers(console: Console, paths: RunPaths) -> None:
    answers = read_jsonl(paths.outputs)
    if not answers:
        return
    total = len(read_jsonl(paths.generations))
    console.title(f"Answers: {total}, of which {len(answers)} in {paths.outputs.name}")
    for row in answers[:SHOWN_ANSWERS]:
        prompt = row.get("input") or row.get("instruction") or row.get("prompt") or ""
        console.table([["asked", str(prompt)], ["answered", str(row.get("output", row.get("answer", "")))]])


def _show_files(console: Console, paths: RunPaths) -> None:
    console.title(f"Files in {_short(paths.folder)}")
    described = (
        (paths.report, "all of it as a page to open in a browser"),
        (paths.manifest, "evidence: code, packages, machine, files, forecast, measurements"),
        (paths.loss_plot, "loss curve"),
        (paths.memory_plot, "planned and measured memory"),
        (paths.parallelism_plot, "bytes, memory and bubble of each way, formula and measurement"),
        (paths.metrics, "one line a step"),
        (paths.tensorboard, "for TensorBoard: tensorboard --logdir"),
        (paths.mlflow, "for MLflow"),
        (paths.folder / "wandb", "for Weights & Biases: wandb sync"),
        (paths.adapter, "trained adapter"),
        (paths.perceptron, "trained weights and the widths of the layers"),
        (paths.merged, "model with the adapter merged: a normal transformers folder"),
        (paths.generations, "every answer, as they were finished"),
        (paths.answers, "every answer as a table, in the order of the prompts"),
        (paths.outputs, "a sample of the answers"),
        (paths.launch_script, "starts training again by hand"),
        (paths.log, "everything the workers printed"),
    )
    rows = [[path.name + ("/" if path.is_dir() else ""), text] for path, text in described if path.exists()]
    console.table(rows)


def _short(path: Any) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
