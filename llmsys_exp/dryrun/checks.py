"""What a dry run cannot stand for: refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmsys_exp.config.schema import Config, Device, ModelKind
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.inputs.find import find_model
from llmsys_exp.plan.case import CPU, world_size

LIMIT, MICRO_BATCH, LENGTH = "limit", "micro_batch", "length"
SEARCHES = (LIMIT, MICRO_BATCH, LENGTH)
GPTQ = "gptq"


@dataclass(frozen=True)
class DryAsk:
    """What is asked of a dry run.

    Attributes:
        rank: which rank is run.
        search: what is searched for; None: one run.
        shared: go on although others use the GPU.
    """

    rank: int = 0
    search: str | None = None
    shared: bool = False


def check_ask(config: Config, ask: DryAsk) -> None:
    """Refuse what cannot be run as one rank among absent others.

    Raises:
        ConfigError: with all that speaks against it.
    """
    problems = [*_problems(config), *_ask_problems(config, ask)]
    if problems:
        raise ConfigError(problems)


def _problems(config: Config) -> Iterator[UserError]:
    if config.model.kind is not ModelKind.causal_lm:
        yield UserError(
            "A dry run is of a language model",
            where=f"model.kind={config.model.kind.value}",
            do="Use tier formula, which plays a perceptron in full",
        )
    if Device.nvme in (config.offload.optimizer, config.offload.param):
        yield UserError(
            "A dry run writes no weights or optimizer state to NVMe",
            where="offload.optimizer and offload.param",
            do="Set them to cpu: what is on the GPU differs by the buffers alone",
        )
    quantization = config.method.quantization
    if config.method.kind.value == "qlora" and quantization.kind == GPTQ and find_model(config) is None:
        yield UserError(
            "A GPTQ base cannot be drawn at random",
            where="method.quantization.kind=gptq",
            do="Give model.path the folder of the quantised model",
        )


def _ask_problems(config: Config, ask: DryAsk) -> Iterator[UserError]:
    ranks = world_size(config)
    if not 0 <= ask.rank < ranks:
        yield UserError(
            f"There is no rank {ask.rank} among {ranks}",
            where="hardware.gpus_per_node x hardware.nodes",
            do=f"Give --rank a number from 0 to {ranks - 1}",
        )
    if ask.search is not None and ask.search not in SEARCHES:
        yield unknown_name("search of a dry run", ask.search, SEARCHES, where="--search")
    elif ask.search is not None and config.hardware.gpu == CPU:
        yield UserError(
            "A limit is searched on a GPU",
            where="--search with hardware=cpu",
            why="The CPU's allocator has no limit that could be set for one job",
            do="Leave --search out",
        )
