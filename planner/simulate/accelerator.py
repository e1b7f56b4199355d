"""DeepSpeed's view of the simulated GPU: torch's meta device, with streams that only have a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from planner.simulate.recorder import GPU, Recorder


class Stream:
    """A stream of the simulated GPU; the allocator has blocks of its own for each."""

    made = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Stream.made += 1
        self.number = Stream.made

    def wait_stream(self, other: Any) -> None:
        """Nothing runs, so nothing waits."""

    def wait_event(self, event: Any) -> None:
        """Nothing runs, so nothing waits."""

    def synchronize(self) -> None:
        """Nothing runs, so nothing waits."""

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event or Event()


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """It has."""

    def wait(self, *_: Any) -> None:
        """It has."""

    def query(self) -> bool:
        """It has."""
        return True

    def synchronize(self) -> None:
        """It has."""

    def elapsed_time(self, other: Any) -> float:
        """No time passes."""
        return 1.0


class SimulatedAccelerator(CUDA_Accelerator):
    """A CUDA device to DeepSpeed, tensors of the meta device to torch.

    Its methods are those of DeepSpeed's `abstract_accelerator.py`, as far as a device without values has any.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._name = GPU  # DeepSpeed reads it where a sub-group of stage 3 stays on the GPU
        self._recorder = recorder
        self._main = Stream()
        self._main.number = 0
        self._now = self._main

    def _init_pynvml(self) -> None:
        """No driver is asked."""

    def device_name(self, device_index: Any = None) -> str:
        return GPU

    def device(self, device_index: Any = None) -> torch.device:
        return torch.device(GPU)

    def set_device(self, device_index: Any) -> None:
        pass

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return GPU

    def device_count(self) -> int:
        return 1

    def synchronize(self, device_index: Any = None) -> None:
        pass

    def Stream(self, *args: Any, **kwargs: Any) -> Stream:
        return Stream()

    def stream(self, stream: Stream) -> Any:
        return self._on(stream)

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self._now = self._now, stream
        self._recorder.stream = stream.number
        try:
            yield
        finally:
            self._now = before
            self._recorder.stream = before.number

    def current_stream(self, device_index: Any = None) -> Stream:
        return self._now

    def default_stream(self, device_index: Any = None) -> Stream:
        return self._main

    @property
    def Event(self) -> type[Event]:
        return Event

    def empty_cache(self) -> None:
        self._recorder.arena.empty_cache()

    def memory_allocated(self, device_index: Any = None) -> int:
        return self._recorder.arena.allocator.allocated

    def max_memory_allocated(self, device_index: Any = None) -> int:
        return self._recorder.arena.allocator.peak_allocated

    def memory_reserved(self, device_index: Any = None) -> int:
        return self._recorder.arena.allocator.reserved

    memory_cached = memory_reserved

    def max_memory_reserved(self, device_index: Any = None) -> int:
        return self._recorder.arena.allocator.peak_reserved

    max_memory_cached = max_memory_reserved

    def reset_peak_memory_stats(self, device_index: Any = None) -> None:
        pass

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: Any = None) -> dict[str, int]:
        return {}

    def total_memory(self, device_index: Any = None) -> int:
        return 1 << 50

    available_memory = total_memory

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def is_triton_supported(self) -> bool:
        return False

    def get_rng_state(self, device_index: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def lazy_call(self, callback: Any) -> None:
        """DeepSpeed's checkpointing sets the state of a random generator so, which is not there."""

    def range_push(self, *_: Any, **__: Any) -> None:
        pass

    def range_pop(self, *_: Any, **__: Any) -> None:
        pass

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1, make_copy: bool = True) -> torch.Tensor:
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == GPU

    def _tensor(self, dtype: torch.dtype) -> Any:
        def make(values: Any) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=GPU)

        return make

    BFloat16Tensor = property(lambda self: self._tensor(torch.bfloat16))
    ByteTensor = property(lambda self: self._tensor(torch.uint8))
    DoubleTensor = property(lambda self: self._tensor(torch.float64))
    FloatTensor = property(lambda self: self._tensor(torch.float32))
    HalfTensor = property(lambda self: self._tensor(torch.float16))
    IntTensor = property(lambda self: self._tensor(torch.int32))
    LongTensor = property(lambda self: self._tensor(torch.int64))


@contextmanager
def installed(accelerator: SimulatedAccelerator) -> Iterator[None]:
    """Let DeepSpeed find this accelerator."""
    with mock.patch.object(real_accelerator, "ds_accelerator", accelerator):
        yield
