"""One model trained four ways: by one rank alone, and by several with data, tensor or pipeline parallelism.

Each scheme starts from the same weights and gets the same whole batch on every rank; `forward_backward`
returns this rank's part of the mean loss, so that the parts of all ranks add up to it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol

from llmsys_exp.workers.parallelism.formulas import layers_of_stage
from llmsys_exp.workers.parallelism.meters import Stopwatch
from llmsys_exp.workers.parallelism.models import Stage, next_token_loss
from llmsys_exp.workers.ranks import Ranks


class Scheme(Protocol):
    """A way of training on several ranks."""

    module: Any
    """What this rank holds of the model."""

    def forward_backward(self, ids: Any) -> float:
        """Leave gradients of the mean loss and return this rank's part of it."""
        ...


class OneRank:
    """Every rank trains the whole model on the whole batch, alone."""

    def __init__(self, model: Any, ranks: Ranks) -> None:
        self.module, self._ranks = model, ranks

    def forward_backward(self, ids: Any) -> float:
        """Train without any other rank."""
        loss = next_token_loss(self.module(ids).logits, ids)
        loss.backward()
        return float(loss.detach()) / self._ranks.world_size


class DataParallel:
    """Every rank holds the whole model and takes a share of the sequences; gradients are averaged."""

    def __init__(self, model: Any, ranks: Ranks) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.module, self._ranks = model, ranks
        # gradients live in the buckets that are sent, or they would be there twice
        self._replica = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)

    def forward_backward(self, ids: Any) -> float:
        """Train on this rank's sequences; buckets are all-reduced while backward goes on."""
        mine = ids.chunk(self._ranks.world_size)[self._ranks.rank].clone()
        loss = next_token_loss(self._replica(mine).logits, mine)
        loss.backward()
        return float(loss.detach()) / self._ranks.world_size


class TensorParallel:
    """Every rank holds a share of each matrix: columns of the first of a pair, rows of the second.

    Between the two no rank needs what another has; behind the second their parts are summed. Embedding, norms
    and output layer are held by all.
    """

    def __init__(self, model: Any, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
        for layer in model.model.layers:
            parallelize_module(layer, mesh, _split_of_a_layer())
        self.module, self._ranks = model, ranks

    def forward_backward(self, ids: Any) -> float:
        """Train all ranks together on all sequences."""
        loss = next_token_loss(self.module(ids).logits, ids)
        loss.backward()
        return float(loss.detach()) / self._ranks.world_size


class PipelineParallel:
    """Every rank holds some of the layers; micro-batches pass through, forward first (GPipe)."""

    def __init__(self, model: Any, ranks: Ranks, *, micro_batches: int) -> None:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        layers = layers_of_stage(len(model.model.layers), ranks.world_size, ranks.rank)
        self._is_first, self._is_last = ranks.is_first, ranks.rank == ranks.world_size - 1
        self.module = Stage(model, layers, is_first=self._is_first, is_last=self._is_last)
        self._stage = PipelineStage(self.module, ranks.rank, ranks.world_size, ranks.device)
        self._schedule = ScheduleGPipe(self._stage, micro_batches, loss_fn=next_token_loss)
        self.work: Stopwatch | None = None
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(self._stage, name, self._timed(getattr(self._stage, name)))

    def forward_backward(self, ids: Any) -> float:
        """Train on all sequences, micro-batch by micro-batch."""
        losses: list[Any] = []
        inputs = (ids,) if self._is_first else ()
        answers = {"target": ids, "losses": losses} if self._is_last else {}
        self._schedule.step(*inputs, **answers)
        return sum(float(one.detach()) for one in losses) / len(losses) if losses else 0.0

    def _timed(self, function: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.work.running() if self.work else nullcontext():
                return function(*arguments, **named)

        return timed


def _split_of_a_layer() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

    whole = Replicate()
    return {
        # one distributed tensor for all column-split matrices: its gradient is summed once, not once for each
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": whole},
            desired_input_kwarg_layouts={"hidden_states": whole},
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
