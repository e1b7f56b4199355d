"""DeepSpeed's engine around a model: optimizer, schedule, batch sizes."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any
from unittest.mock import patch

from llmsys_exp.config.schema import TrainingConfig
from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.methods.parameters import trainable_parameters
from llmsys_exp.workers.training.optimizers import client_optimizer, undo_dummy_step
from llmsys_exp.workers.training.schedule import learning_rate_factor

MUON = "muon"


def start_engine(model: Any, ds_config: dict[str, Any], training: TrainingConfig, *, steps: int) -> Any:
    """Hand the model to DeepSpeed. The optimizer is DeepSpeed's where its file names one, else ours."""
    import deepspeed
    from torch.optim.lr_scheduler import LambdaLR

    weights = trainable_parameters(model)
    factor = learning_rate_factor(training, steps=steps)
    if str(ds_config.get("optimizer", {}).get("type")).lower() != MUON:
        leave_compiler_out()
    engine, *_ = deepspeed.initialize(
        model=model,
        config=ds_config,
        optimizer=None if "optimizer" in ds_config else client_optimizer(weights, training),
        model_parameters=weights,
        lr_scheduler=lambda built: LambdaLR(built, factor),
    )
    undo_dummy_step(engine.optimizer)
    return engine


def leave_compiler_out() -> None:
    """Import DeepSpeed's Muon, as every engine does, without torch's compiler: 2 s and 40 MiB of each rank.

    Its functions are then not to be compiled; no other optimizer calls them.
    """
    import torch

    def as_it_is(function: Any = None, **_: Any) -> Any:
        return as_it_is if function is None else function

    with patch.object(torch, "compile", as_it_is), suppress(ImportError):
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")


def end_gathering(engine: Any) -> None:
    """Wait for gathers that are under way and give whole weights back.

    ZeRO-3 fetches ahead: after an evaluation it has begun to gather weights for a step that does not come,
    and whoever gathers such a weight by hand next meets one in flight.
    """
    if engine.zero_optimization_stage() == 3:
        engine.empty_partition_cache()


def check_batch_sizes(ds_config: dict[str, Any], order: Order) -> None:
    """Refuse a DeepSpeed file whose batch sizes are not those of the run."""
    sum_text = f"{order.micro_batch} x {order.grad_accum} x {order.world_size} ranks = {order.global_batch}"
    ours = {
        "train_micro_batch_size_per_gpu": order.micro_batch,
        "gradient_accumulation_steps": order.grad_accum,
        "train_batch_size": order.global_batch,
    }
    for key, wanted in ours.items():
        if ds_config.get(key, wanted) != wanted:
            raise UserError(
                f"{key} is {ds_config[key]}, the run has {wanted}",
                where="ds_config.json",
                why=sum_text,
                do="Start the run through llmsys, which writes both files",
            )
