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
    memory = SimpleNamespace(record=lambda name: None, saw=lambda batch: None)
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


class FP16_Optimizer(SimpleNamespace):
    """Tells the norm without the loss scale."""


class FP16_UnfusedOptimizer(SimpleNamespace):
    """Tells it with the scale."""


class ScaledEngine(PlainEngine):
    """DeepSpeed's at stage 0 in fp16: it does not scale the loss, and its optimizer undoes a scale all the same."""

    def __init__(self, make, *, overflows=False):
        super().__init__(1)
        plain = torch.optim.SGD(self.module.parameters(), lr=0.0)
        scales = SimpleNamespace(cur_scale=SCALE)
        self.optimizer = make(optimizer=plain, _global_grad_norm=0.0, loss_scale_config=scales)
        self.overflows = overflows

    def step(self):
        norm = torch.stack([one.grad.norm() for one in self.module.parameters()]).norm()
        told = norm if isinstance(self.optimizer, FP16_UnfusedOptimizer) else norm / SCALE
        self.optimizer._global_grad_norm = float("inf") if self.overflows else told
        if not self.overflows:
            self.optimizer.optimizer.step()
            # what becomes of the attribute behind the update is no figure of this step
            self.updated_by, self.optimizer._global_grad_norm = float(norm / SCALE), None
        self.module.zero_grad()

    def was_step_applied(self):
        return not self.overflows

    def get_global_grad_norm(self):
        return self.optimizer._global_grad_norm


def one_step(make):
    torch.manual_seed(1)
    engine = make()
    order = Order(count=4, micro_batch=2, grad_accum=1, world_size=1, seed=1)
    ranks = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))
    memory = SimpleNamespace(record=lambda name: None, saw=lambda batch: None)
    [report] = Trainer(engine, CountedTask(), order, ranks=ranks, memory=memory).steps(1, 2)
    return engine, report


@pytest.mark.parametrize("optimizer", [FP16_Optimizer, FP16_UnfusedOptimizer])
def test_at_stage_0_in_fp16_the_loss_is_scaled_and_its_figures_are_not(optimizer):
    _, plain = one_step(lambda: PlainEngine(1))
    engine, report = one_step(lambda: ScaledEngine(optimizer))
    assert engine.updated_by == pytest.approx(plain.gradient_norm), (
        "neither 1 / scale nor scale times as much"
    )
    assert report.gradient_norm == pytest.approx(plain.gradient_norm)
    assert report.loss == pytest.approx(plain.loss)


def test_a_step_that_overflows_tells_so():
    _, report = one_step(lambda: ScaledEngine(FP16_Optimizer, overflows=True))
    assert not report.applied
    assert report.gradient_norm == float("inf")
