"""Plays the models of an alignment job through in one allocator."""

from __future__ import annotations

from planner.alignment_case import AlignmentCase
from planner.deepspeed.base import ReplicatedWeights
from planner.deepspeed.coordinator import Coordinator
from planner.deepspeed.stage3 import Stage3
from planner.memory.arena import Buffer
from planner.network.modules import Network
from planner.network.run import ForwardPass
from planner.network.scores import TRL, head, log_probabilities
from planner.serving.phases import decode_parts, prefill_parts
from planner.tables import card_of, workspace_bytes
from planner.tape.autograd import Tape, Tensor
from planner.tape.kernels import Workspaces
from planner.training import STEPS_FOR_FRAGMENTS, STEPS_FOR_PEAK, TrainingRun
from planner.training_case import TrainingCase

GATHERED = "gathered weights"
KEPT_ELSEWHERE = ("weights", "cublas workspace")
MICRO_BATCHES = 2  # as `training` plays them: the first one, and one that meets accumulated gradients


class Scorer:
    """A model that only scores, or the policy while it scores."""

    def __init__(self, run: TrainingRun, case: TrainingCase, *, adapters: bool = True) -> None:
        self.case, self.network, self.arena, self.adapters = case, run.network, run.arena, adapters
        self.engine, self.workspaces = run.engine, run.workspaces
        self.coordinator: Coordinator | None = None
        if isinstance(self.engine, Stage3):  # a pass of its own order of modules has a trace of its own
            self.coordinator = Coordinator(self.arena, case.zero, case.world_size, uploads=False)

    def logits(self) -> Tensor:
        """One forward pass under `no_grad` to the output layer."""
        engine, kept = self.engine, None
        if isinstance(engine, Stage3) and self.coordinator is not None:
            kept, engine.coordinator = engine.coordinator, self.coordinator
        tape = Tape(self.arena, engine, self.workspaces)
        tape.recording = False
        engine.begin_micro_batch()
        forward = ForwardPass(self.case, self.network, tape, engine)
        forward.adapters, forward.checkpoints = self.adapters, False
        logits = head(forward, forward.hidden_states())
        if isinstance(engine, Stage3) and kept is not None:
            engine.coordinator.release_all()
            engine.coordinator = kept
        return logits

    def log_probabilities(self, logits: Tensor) -> None:
        """Their log-softmax, of which little stays."""
        tape = Tape(self.arena, self.engine, self.workspaces)
        tape.recording = False
        log_probabilities(tape, logits, rows=self.case.micro_batch if self.case.loss == TRL else 1)


class AlignmentRun:
    """One emulated rank 0 over the start and the first optimizer steps of an alignment job."""

    def __init__(self, case: AlignmentCase) -> None:
        self.case = case
        self.trained: dict[str, TrainingRun] = {}
        arena = None
        for name, one in case.trained.items():
            self.trained[name] = TrainingRun(one, arena, label=f"{name} ")
            arena = self.trained[name].arena
        assert arena is not None
        self.arena = arena
        device = case.first.device
        shared = Workspaces(arena, workspace_bytes(device), card_of(device))
        self.frozen = {name: TrainingRun(one, arena, label=f"{name} ") for name, one in case.frozen.items()}
        runs = {**self.trained, **self.frozen}
        for run in runs.values():
            run.workspaces = shared
        self.networks: dict[str, Network] = {name: run.network for name, run in runs.items()}
        self.scorers = {name: Scorer(run, case.frozen[name]) for name, run in self.frozen.items()}
        self.start_peak_bytes = 0

    def play(self) -> None:
        """Run everything; the arena then holds events, phases and the peak of the steps."""
        self._set_up()
        self.start_peak_bytes = max(p.peak_bytes for p in self.arena.phases)
        self.arena.forget_peak()
        steps = STEPS_FOR_PEAK if self.case.first.device == "cpu" else STEPS_FOR_FRAGMENTS
        play_step = {"dpo": self._dpo, "grpo": self._grpo, "ppo": self._ppo}[self.case.kind]
        if self.case.kind == "dpo":
            self.trained["policy"].before_backward = self._reference_beside
        for step in range(steps):
            play_step(step)

    def _set_up(self) -> None:
        """Models in the order in which they are made; trl starts the policy's engine last."""
        if self.case.kind == "ppo":
            self.trained["actor"].set_up()
            self._load_frozen("reference")
            self.trained["critic"].set_up()
            self._load_frozen("reward")
            return
        policy = self.trained["policy"]
        policy.engine.load()
        self.arena.end_phase("policy load")
        for name in self.frozen:
            self._load_frozen(name)
        policy.engine.start()
        self.arena.end_phase("policy engine start")

    def _load_frozen(self, name: str) -> None:
        """Weights alone: an engine without optimizer makes no buckets."""
        engine = self.frozen[name].engine
        engine.load()
        for buffer in _weights(engine):
            self.arena.rename(buffer, f"{name} weights")
        self.arena.end_phase(f"{name} load")

    def _dpo(self, step: int) -> None:
        self.trained["policy"].optimize(step)

    def _reference_beside(self) -> None:
        """The reference scores the same pairs while the policy's graph waits."""
        scorer = self._reference()
        scorer.log_probabilities(scorer.logits())

    def _reference(self) -> Scorer:
        if "reference" not in self.scorers:
            policy = self.trained["policy"]
            self.scorers["reference"] = Scorer(policy, policy.case, adapters=False)
        return self.scorers["reference"]

    def _grpo(self, step: int) -> None:
        """Generate, let the reference score a micro-batch at a time, learn."""
        self._generate(step)
        if self.case.frozen or self.case.base_scores:
            scorer = self._reference()
            scorer.log_probabilities(scorer.logits())
            self.arena.end_phase(f"scoring {step + 1}")
        self.trained["policy"].optimize(step)

    def _ppo(self, step: int) -> None:
        """`generate_experience` and `train_rlhf`, actor before critic."""
        count = min(self.case.first.grad_accum, MICRO_BATCHES)
        for micro in range(count):
            self._generate(step)
            self._experience()
            self.arena.end_phase(f"scoring {step + 1}")
            for run in self.trained.values():
                run.micro_batch(step, boundary=micro == count - 1)
                if micro == count - 1:
                    run.engine.step()
                    self.arena.end_phase(f"{run.label}step {step + 1}")

    def _experience(self) -> None:
        """Logits of actor and reference are both there while reward and critic run."""
        actor, critic = (self._own(name) for name in ("actor", "critic"))
        both = [(actor, actor.logits()), (self.scorers["reference"], self.scorers["reference"].logits())]
        self.scorers["reward"].logits()
        critic.logits()
        for scorer, logits in both:
            scorer.log_probabilities(logits)

    def _own(self, name: str) -> Scorer:
        key = f"{name} itself"
        if key not in self.scorers:
            run = self.trained[name]
            self.scorers[key] = Scorer(run, run.case)
        return self.scorers[key]

    def _generate(self, step: int) -> None:
        """The two highest moments of `generate`: the prompt's pass and the last new token."""
        assert self.case.generation is not None
        whole = None
        if self.case.gathers_for_generation:
            numel = sum(p.numel * p.itemsize for p in self.networks[next(iter(self.trained))].parameters())
            whole = self.arena.new(numel, GATHERED)
        for parts in (prefill_parts(self.case.generation), decode_parts(self.case.generation)):
            held = [
                self.arena.new(nbytes, "KV cache" if name == "kv_cache" else "generation")
                for name, nbytes in parts.items()
                if name not in KEPT_ELSEWHERE
            ]
            del held
        del whole
        self.arena.end_phase(f"generation {step + 1}")


def _weights(engine: object) -> list[Buffer]:
    if isinstance(engine, Stage3):
        return list(engine.shards.values())
    assert isinstance(engine, ReplicatedWeights)
    return [buffer for parts in engine.weights.values() for buffer in parts]
