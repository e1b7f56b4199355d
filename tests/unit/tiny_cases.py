"""A tiny model whose bytes can be summed by hand, and a memory that counts exactly (no rounding, no caching)."""

from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena
from planner.network.build import build_network
from planner.parsing import parse_training_case
from planner.training import TrainingRun, make_engine

HIDDEN, FFN, LAYERS, HEADS, VOCAB = 64, 128, 2, 4, 256
TABLE = VOCAB * HIDDEN  # embedding or output layer
NORM = HIDDEN
ATTENTION = 4 * HIDDEN * HIDDEN
LAYER = ATTENTION + 3 * HIDDEN * FFN + 2 * NORM
TOTAL = TABLE + LAYERS * LAYER + NORM + TABLE  # 115,008
TOKENS = 16

CONFIG = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "vocab_size": VOCAB,
}  # fmt: skip
LORA = {"method": "lora", "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}
ADAPTERS = LAYERS * 2 * 4 * (HIDDEN + HIDDEN)
"""Elements of the adapters of LORA: two modules a layer, rank 4, both factors."""


def case_of(*, config=None, zero=None, **changes):
    """A checked case of the tiny model; `zero` are settings of DeepSpeed's zero_optimization."""
    given = {
        "hf_config": {**CONFIG, **(config or {})},
        "method": "full",
        "micro_batch": 1,
        "seq_len": TOKENS,
        "gpu": "cpu",
        **changes,
    }
    if zero is not None:
        given["deepspeed"] = {**given.get("deepspeed", {}), "zero_optimization": zero}
    return parse_training_case(given)


class Recorder(Arena):
    """Notes every request: component and bytes, and what is allocated with it."""

    def __init__(self, allocator=None):
        super().__init__(PlainAllocator() if allocator is None else allocator)
        self.requests = []
        self.levels = []

    def take(self, buffer, stream):
        """Serve a buffer and note it."""
        super().take(buffer, stream)
        self.requests.append((buffer.what, buffer.nbytes))
        self.levels.append(self.allocator.allocated)

    def asked(self, what):
        """Sizes of all requests of one component."""
        return [nbytes for name, nbytes in self.requests if name == what]


class Start:
    """An engine that was loaded and started: bytes after each, and the most within each."""

    def __init__(self, case):
        self.arena = Recorder()
        self.network = build_network(case)
        self.engine = make_engine(case, self.network, self.arena)
        self.engine.load()
        self.arena.end_phase("load")
        self.before = len(self.arena.requests)
        self.engine.start()
        self.arena.end_phase("engine start")
        self.load, self.start = self.arena.phases

    @property
    def asked_at_start(self):
        """Requests of the engine's start."""
        return self.arena.requests[self.before :]


def play(case, *, steps=1):
    """Play a case over a recording arena; gives back the run."""
    run = TrainingRun(case, Recorder())
    run.play(steps=steps)
    return run
