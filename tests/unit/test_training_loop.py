"""The training loop without an engine: what it makes of the data, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.tasks.base import Sizes
from llmsys_exp.workers.training.loop import Trainer

STEPS = 4
SCALE = 2.0**16


class CountedOrder(Order):
    def step(self, number):
        self.asked.append(number)
        return super().step(number)


class Rows:
    """Examples that remember which of them were made."""

    def __init__(self):
        self.made = []

    def __getitem__(self, number):
        self.made.append(number)
        return number


class CountedTask:
    def __init__(self):
        self.examples, self.shares = Rows(), []

    def sizes(self, numbers):
        return Sizes(targets=len(numbers), tokens=sum(numbers), pairs=sum(one * one for one in numbers))

    def collate(self, examples):
        return {"x": torch.tensor(examples, dtype=torch.float32)}

    def loss(self, engine, batch, targets):
        self.shares.append(targets)
        return engine.module(batch["x"][:, None]).sum() / targets


class PlainEngine:
    """As much of DeepSpeed's engine as the loop asks for."""

    def __init__(self, accum):
        self.module, self.accum, self.passes = torch.nn.Linear(1, 1), accum, 0
        self.optimizer = None

    def train(self):
        self.module.train()

    def backward(self, loss):
        self.passes += 1
        loss.backward()

    def is_gradient_accumulation_boundary(self):
        return self.passes % self.accum == 0

    def zero_optimization_stage(self):
        return 0

    def step(self):
        pass

    def get_lr(self):
        return [0.1]

    def was_step_applied(self):
        return True

    def get_global_grad_norm(self):
        return 1.0


@pytest.fixture
def run():
    order = CountedOrder(count=40, micro_batch=2, grad_accum=3, world_size=1, seed=1)
    object.__setattr__(order, "asked", [])
    task = CountedTask()
    ranks = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))
    memory = SimpleNamespace(record=lambda name: None)
    trainer = Trainer(PlainEngine(order.grad_accum), task, order, ranks=ranks, memory=memory)
    return SimpleNamespace(order=order, task=task, reports=list(trainer.steps(0, STEPS)))


def test_a_step_is_looked_up_once_and_each_example_made_once(run):
    assert run.order.asked == list(range(STEPS))
    trained = [one for step in range(STEPS) for one in Order.step(run.order, step)]
    assert sorted(run.task.examples.made) == sorted(trained)


def test_figures_are_those_of_the_whole_step(run):
    whole = [Order.step(run.order, step) for step in range(STEPS)]
    assert [one.tokens for one in run.reports] == [sum(step) for step in whole]
    assert [one.pairs for one in run.reports] == [sum(n * n for n in step) for step in whole]
    assert set(run.task.shares) == {run.order.global_batch / run.order.grad_accum}


class ScaledEngine(PlainEngine):
    """DeepSpeed's at stage 0 in fp16: gradients hold the loss scale, and the optimizer tells the plain norm."""

    def __init__(self, *, overflows=False):
        super().__init__(1)
        plain = torch.optim.SGD(self.module.parameters(), lr=0.0)
        self.optimizer = SimpleNamespace(optimizer=plain, _global_grad_norm=0.0)
        self.overflows = overflows

    def backward(self, loss):
        super().backward(loss * SCALE)

    def step(self):
        norm = torch.stack([one.grad.norm() for one in self.module.parameters()]).norm()
        self.optimizer._global_grad_norm = float("inf") if self.overflows else norm / SCALE
        if not self.overflows:
            self.optimizer.optimizer.step()
            # what becomes of the attribute behind the update is no figure of this step
            self.plain_norm, self.optimizer._global_grad_norm = float(norm / SCALE), None
        self.module.zero_grad()

    def was_step_applied(self):
        return not self.overflows

    def get_global_grad_norm(self):
        return self.optimizer._global_grad_norm


@pytest.mark.parametrize("overflows", [False, True])
def test_the_gradients_norm_is_the_optimizers_own_without_the_loss_scale(overflows):
    order = Order(count=4, micro_batch=2, grad_accum=1, world_size=1, seed=1)
    ranks = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))
    engine = ScaledEngine(overflows=overflows)
    trainer = Trainer(
        engine, CountedTask(), order, ranks=ranks, memory=SimpleNamespace(record=lambda name: None)
    )
    [report] = trainer.steps(1, 2)
    assert report.applied != overflows
    assert report.gradient_norm == (float("inf") if overflows else pytest.approx(engine.plain_norm))
