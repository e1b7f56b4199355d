"""The engine of a case, real code both times: DeepSpeed's, or a loop without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from planner.errors import CaseError
from planner.simulate.recorder import Recorder
from planner.simulate.settings import MADE_BY_DEEPSPEED
from planner.simulate.shaped.optimizers import BITSANDBYTES, ShapedOptimizer
from planner.training_case import TrainingCase

WEIGHTS, MASTER, STATES, GRADIENTS = "weights", "fp32 master weights", "optimizer states", "gradients"


class PlainLoop:
    """A loop without DeepSpeed behind the calls of its engine."""

    def __init__(self, model: Any, optimizer: Any, micro_batches: int, *, syncs: bool | None = None) -> None:
        """Run a loop; `syncs`: of FSDP2, whether each micro-batch reduces its gradients; None: no FSDP2."""
        self.module, self.optimizer, self._syncs = model, optimizer, syncs
        self._micro_batches, self._done = micro_batches, 0

    def __call__(self, **inputs: Any) -> Any:
        """Run the model."""
        return self.module(**inputs)

    def backward(self, loss: Any) -> None:
        """Accumulate gradients."""
        self._done += 1
        if self._syncs is not None:
            self.module.set_requires_gradient_sync(self._syncs or self._done == self._micro_batches)
        loss.backward()

    def step(self) -> None:
        """Clip, step, and give gradients back, after the last micro-batch."""
        if self._done < self._micro_batches:
            return
        self._done = 0
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def start_engine(
    case: TrainingCase, model: Any, ds_config: Mapping[str, Any], recorder: Recorder, *, groups: Any = None
) -> Any:
    """Start the engine around a model.

    Args:
        case: the job.
        model: the model.
        ds_config: DeepSpeed's configuration.
        recorder: who sees what is allocated.
        groups: ranks that share sequences, as DeepSpeed's `mpu`.

    Raises:
        CaseError: for an engine or an optimizer that cannot be simulated.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    foreach = case.engine != "fsdp2" or case.fsdp.foreach
    optimizer = _client_optimizer(case.optimizer, trained, recorder, foreach=foreach)
    if case.engine != "deepspeed":
        syncs = case.fsdp.sync_each_batch if case.engine == "fsdp2" else None
        return PlainLoop(model, optimizer, ds_config["gradient_accumulation_steps"], syncs=syncs)
    import deepspeed

    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, model_parameters=trained, config=dict(ds_config), mpu=groups
    )
    return engine


def _client_optimizer(name: str, trained: list[Any], recorder: Recorder, *, foreach: bool) -> Any:
    """Optimizers that DeepSpeed does not make itself. `foreach` is what torch chooses on a GPU."""
    if name in MADE_BY_DEEPSPEED:
        return None
    if name == "torch_adamw":
        return torch.optim.AdamW(trained, lr=1e-4, foreach=foreach)
    if name == "torch_adamw_fused":
        return torch.optim.AdamW(trained, lr=1e-4, fused=True)
    if name in BITSANDBYTES:
        return ShapedOptimizer(trained, name, recorder.elsewhere)
    if name in ("sgd", "sgd_momentum"):
        momentum = 0.9 if name == "sgd_momentum" else 0.0
        return torch.optim.SGD(trained, lr=1e-4, momentum=momentum, foreach=foreach)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-4, scale_parameter=False, relative_step=False)
    raise CaseError(f"optimizer {name} cannot be simulated: its kernels need a GPU; use tier formula")


def name_states(recorder: Recorder, engine: Any) -> None:
    """Count what weights, gradients and the optimizer hold under their names."""
    outer = getattr(engine, "optimizer", None)
    inner = getattr(outer, "optimizer", outer)
    stepped = [parameter for group in getattr(inner, "param_groups", ()) for parameter in group["params"]]
    states = [value for state in getattr(inner, "state", {}).values() for value in state.values()]
    weights = list(engine.module.parameters())
    shards = [getattr(parameter, "ds_tensor", None) for parameter in weights]
    # a weight that is stepped as it is comes later, and stays a weight
    named = {MASTER: stepped, STATES: states, WEIGHTS: [*weights, *shards]}
    for name, tensors in named.items():
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                recorder.rename(tensor, name)
    name_gradients(recorder, [*stepped, *weights])


def name_gradients(recorder: Recorder, parameters: Iterable[Any]) -> None:
    """Count the gradients of parameters under their name."""
    for parameter in parameters:
        if parameter.grad is not None:
            recorder.rename(parameter.grad, GRADIENTS)
