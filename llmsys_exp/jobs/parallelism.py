"""The step `parallelism`: what it needs of a configuration, known before anything starts."""

from __future__ import annotations

from llmsys_exp.config.schema import Config, Dtype, MethodKind
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import hf_config, world_size
from llmsys_exp.workers.parallelism.formulas import MICRO_BATCHES


def check_parallelism(config: Config) -> None:
    """Refuse what cannot be cut into equal parts, and models that are not written as Llama is.

    Raises:
        ConfigError: naming every problem.
    """
    shape, ranks = hf_config(config), world_size(config)
    problems: list[UserError] = []
    if shape.get("model_type") != "llama":
        problems.append(
            UserError(
                f"The step parallelism cuts a Llama, and this is {shape.get('model_type')}",
                where="model.path or model.entry",
                do="Use model.path=shipped:data/small_llama",
            )
        )
    if config.training.dtype is not Dtype.fp32 or config.method.kind is not MethodKind.full:
        problems.append(
            UserError(
                f"The step parallelism trains every weight in fp32, not {config.method.kind.name} in "
                f"{config.training.dtype.name}",
                do="Set method=full training.dtype=fp32",
            )
        )
    if ranks < 2:
        problems.append(
            UserError("One rank has nothing to share", where="hardware", do="Use 2 or more ranks")
        )
    for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if int(shape.get(key, 0)) % ranks:
            problems.append(
                UserError(
                    f"{key}={shape.get(key)} cannot be shared out among {ranks} ranks", where="model.path"
                )
            )
    sequences = config.training.global_batch
    if sequences is None or sequences % ranks or sequences % MICRO_BATCHES:
        problems.append(
            UserError(
                f"training.global_batch={sequences} cannot be cut for {ranks} ranks and {MICRO_BATCHES} "
                "micro-batches",
                do=f"Set it to a multiple of {ranks * MICRO_BATCHES}",
            )
        )
    if config.training.max_steps is None or config.training.max_steps < 2:
        problems.append(
            UserError("The first step is not like the others", do="Set training.max_steps to 2 or more")
        )
    if problems:
        raise ConfigError(problems)
