"""What an inference engine cannot do: refused before any weights load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from urllib.parse import urlsplit

import planner
from llmsys_exp.config.schema import AUTO, Config, GatePolicy, SglangConfig
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.launch.sglang_ready import OLDEST_CAPABILITY, OLDEST_KERNELS
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.serving_case import TRANSFORMERS, Demand, starts_sglang
from llmsys_exp.plan.serving_work import NO_TEMPLATE
from llmsys_exp.workers.data.templates import template_file
from planner.serving.model import is_served, served_model

LEAST_CAPABILITY = {"w8a8_fp8": (8, 9), "w8a8_int8": (7, 5), "fp8": (8, 0), "mxfp4": (8, 0), "awq": (8, 0)}
"""Of ways to quantise. Source: SGLang 0.5.17 `srt/layers/quantization/*: get_min_capability`."""
ANYWHERE = "inference.engine=transformers runs anywhere"


def check_serving(config: Config, demand: Demand) -> None:
    """Refuse settings of an engine that contradict the model, the prompts or the hardware.

    Raises:
        ConfigError: naming every problem.
    """
    problems = [*_text_problems(config), *_length_problems(config, demand)]
    if starts_sglang(config) and not is_served(demand.shape):
        raise ConfigError([_unknown(demand)])
    if starts_sglang(config):
        problems = [*capability_problems(config, demand), *_sglang_problems(config), *problems]
    if problems:
        raise ConfigError(problems)


def _unknown(demand: Demand) -> UserError:
    family = demand.shape.get("model_type")
    return UserError(
        f"The settings of an SGLang start are chosen by formula, and none knows {family}",
        where="inference.engine",
        do="Use inference.engine=transformers, which is simulated; python -m planner predict CASES.jsonl "
        "--tier simulate forecasts an SGLang start with given settings (docs/simulate.md)",
    )


def check_server(config: Config) -> None:
    """Refuse what cannot be the address of a server.

    Raises:
        ConfigError: when `inference.server.url` is none.
    """
    url = config.inference.server.url
    if url is None or _is_url(url):
        return
    where, do = f"inference.server.url={url}", "It looks like http://HOST:PORT"
    raise ConfigError([UserError("That is no URL of a server", where=where, do=do)])


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        return False


def _text_problems(config: Config) -> Iterator[UserError]:
    """A chat template that is not there."""
    inference = config.inference
    if inference.template not in (None, NO_TEMPLATE):
        try:
            template_file(str(inference.template))
        except UserError as error:
            yield UserError(error.what, where="inference.template", why=error.why, do=error.do)


def capability_problems(config: Config, demand: Demand) -> Iterator[UserError]:
    """What the card lacks for SGLang, and for the way in which the weights are quantised."""
    name = config.hardware.gpu
    if name == CPU:
        return
    gpu, asked = planner.gpu(name), config.inference.sglang.quantization
    stored = (demand.shape.get("quantization_config") or {}).get("quant_method")
    where = f"hardware.gpu={name}"
    if gpu.vendor != "nvidia":
        return
    if gpu.capability < OLDEST_CAPABILITY:
        what = f"SGLang does not run on {gpu.title}"
        why = f"Its compute capability is {gpu.compute_capability}, and SGLang asks for 7.5"
        yield UserError(what, where=where, why=why, do=f"{ANYWHERE}; or take a GPU of 8.0 or above")
    elif gpu.capability < OLDEST_KERNELS and config.gate.policy is not GatePolicy.off:
        what = f"The kernels that SGLang's wheel brings do not run on {gpu.title}"
        why = f"Its compute capability is {gpu.compute_capability}, and they begin at 8.0"
        do = f"{ANYWHERE}; gate=off tries it, where you have built the kernels yourself"
        yield UserError(what, where=where, why=why, do=do)
    least = LEAST_CAPABILITY.get(str(asked or stored))
    if least is not None and OLDEST_KERNELS <= gpu.capability < least:
        named = f"inference.sglang.quantization={asked}" if asked else f"A model stored as {stored}"
        why = f"It asks for compute capability {_text(least)}; this is {gpu.compute_capability}"
        do = "Use fp8 (weights alone), awq or gptq, or leave it out" if asked else "Take one stored otherwise"
        yield UserError(f"{named} does not run on {gpu.title}", where=where, why=why, do=do)


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _sglang_problems(config: Config) -> Iterator[UserError]:
    settings, gpus = config.inference.sglang, config.hardware.gpus_per_node
    for key, value in (("tp_size", settings.tp_size), ("dp_size", settings.dp_size)):
        if config.hardware.gpu == CPU and value not in (AUTO, 1):
            why = "Its ranks would share one main memory, of which each would take its fraction"
            what = f"inference.sglang.{key}={value} on the CPU"
            yield UserError(what, why=why, do="Set it to 1 or to auto")
            return
        if value != AUTO and int(value) > gpus:
            what = f"inference.sglang.{key}={value} needs {value} GPUs; hardware.gpus_per_node is {gpus}"
            yield UserError(what, do=f"Set it to {gpus} or less, or raise hardware.gpus_per_node")
            return
    if AUTO not in (settings.tp_size, settings.dp_size):
        needed = int(settings.tp_size) * int(settings.dp_size)
        if needed > gpus:
            what = f"tp_size {settings.tp_size} x dp_size {settings.dp_size} needs {needed} GPUs"
            where = f"hardware.gpus_per_node={gpus}"
            most = max(1, gpus // int(settings.tp_size))
            yield UserError(what, where=where, do=f"Set inference.sglang.dp_size={most}, or raise it")
    yield from _chunk_problem(settings)
    yield from _twice_problems(settings)


def _twice_problems(settings: SglangConfig) -> Iterator[UserError]:
    """Arguments that have a setting: given as arguments, they would pass the plan by."""
    own = {one.name for one in fields(SglangConfig)}
    for name in sorted(own.intersection(settings.arguments)):
        yield UserError(
            f"{name} has a setting of its own",
            where=f"inference.sglang.arguments.{name}",
            do=f"Use inference.sglang.{name}",
        )


def _chunk_problem(settings: SglangConfig) -> Iterator[UserError]:
    if settings.chunked_prefill_size == 0:
        yield UserError("inference.sglang.chunked_prefill_size=0 means nothing", do="-1 turns chunks off")


def _most_positions(demand: Demand) -> int | None:
    """Tokens that a model knows; of an unknown family what its configuration says, if it does."""
    if is_served(demand.shape):
        return served_model(demand.shape).max_positions
    most = demand.shape.get("max_position_embeddings")
    return most if isinstance(most, int) and most > 0 else None


def _length_problems(config: Config, demand: Demand) -> Iterator[UserError]:
    """Prompts and answers that no context holds, as far as bytes tell; the worker counts tokens."""
    work, most = demand.work, _most_positions(demand)
    if most is None:
        return
    given = config.inference.sglang.context_length
    ours = config.inference.engine != TRANSFORMERS and given != AUTO
    if ours and int(given) > most and starts_sglang(config):
        what = f"inference.sglang.context_length={given} is above the {most:,} positions of the model"
        yield UserError(what, why="SGLang refuses it", do=f"Set it to {most} or less, or to auto")
        return
    limit, named = (int(given), "inference.sglang.context_length") if ours else (most, "the model's context")
    if work.new_tokens + 1 > limit:
        what = f"Answers of {work.new_tokens:,} tokens leave no room for a prompt"
        yield UserError(
            what,
            where="inference.sampling.max_new_tokens",
            why=f"Prompt and answer share {limit:,} tokens, by {named}",
            do=f"Set it to {max(1, limit // 2)} or less",
        )
    elif work.least_longest_tokens + work.new_tokens > limit and work.assumed:
        yield UserError(
            f"No prompt file is named, and the {work.longest_bytes:,} bytes assumed for one are too long",
            why=f"Prompt and answer share {limit:,} tokens, by {named}",
            do="Name the file in inference.prompts",
        )
    elif work.least_longest_tokens + work.new_tokens > limit:
        least = work.least_longest_tokens
        yield UserError(
            f"The longest prompt ({work.longest_bytes:,} bytes, {least:,} tokens at least) is too long",
            where="inference.prompts",
            why=f"With {work.new_tokens:,} new tokens it exceeds {named} of {limit:,}",
            do="Shorten the prompt, or lower inference.sampling.max_new_tokens",
        )
