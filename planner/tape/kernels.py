"""What CUDA kernels take for themselves: no program sees it, and it comes from the allocator all the same."""

from __future__ import annotations

from planner.memory.arena import Arena, Buffer
from planner.tables import Gpu

SCRATCH = "kernel scratch"
FP32 = 4
WARP = 32
MOST_THREADS_OF_BLOCK = 512
MOST_VALUES_OF_THREAD, FEWEST_VALUES_OF_THREAD = 256, 16
WIDEST_VECTOR = 4
CUBLASLT_BYTES = 1 << 20
"""Torch 2.11 `cuda/CUDABlas.cpp`, where CUBLASLT_WORKSPACE_SIZE does not say otherwise; so on an H200."""


TUNING_BYTES = 256 << 20
"""Triton 3.9 `backends/nvidia/driver.py: get_empty_cache_for_benchmark`: what empties the GPU's cache."""


class Workspaces:
    """CuBLAS and cuBLASLt keep one from the first product of a thread on; sums hold theirs for a moment.

    So does Triton while it looks for the best way to run a kernel, the first time that it runs.

    Forward runs in the main thread; backward, recomputation included, in autograd's.

    Args:
        arena: where it lies.
        nbytes: what cuBLAS takes.
        card: the GPU, whose size decides how sums are split; None on a CPU, where they are not.
    """

    def __init__(self, arena: Arena, nbytes: int, card: Gpu | None = None) -> None:
        self._arena, self._nbytes, self._card = arena, nbytes, card
        self._held: dict[tuple[bool, bool], Buffer] = {}
        self._tuned: set[str] = set()

    def use(self, *, backward: bool, biased: bool = False) -> None:
        """A matrix product runs; one that adds a bias is cuBLASLt's, whose handle is cuBLAS's."""
        for lt in (False, True)[: 1 + biased]:
            if (backward, lt) not in self._held:
                nbytes = min(self._nbytes, CUBLASLT_BYTES) if lt else self._nbytes
                self._held[backward, lt] = self._arena.new(nbytes, "cuBLAS workspace")

    def tune(self, kernel: str) -> None:
        """A kernel of Triton's runs that tunes itself; a grid asks for neither."""
        if self._nbytes and kernel not in self._tuned:
            self._tuned.add(kernel)
            self._arena.new(TUNING_BYTES, SCRATCH)

    def sum_columns(self, rows: int, columns: int) -> None:
        """A sum over rows runs, after its output was allocated."""
        nbytes = 0 if self._card is None else column_sum_bytes(rows, columns, self._card)
        if nbytes:
            self._arena.new(nbytes, SCRATCH)


def column_sum_bytes(rows: int, columns: int, card: Gpu) -> int:
    """Partial sums over the rows of a contiguous [rows, columns], which blocks of threads exchange.

    Long sums are split over several blocks, and each keeps an fp32 number for each of its threads and of the
    columns that a thread loads at once. AMD's branch of the source splits otherwise and is not followed.
    Source: torch 2.11 `ATen/native/cuda/Reduce.cuh`: `setReduceConfig`, `set_block_dimension`,
    `global_memory_size`; equal to what an H200 allocated for 2,048 rows of 1536, 1792, 2048 and 6144 columns.
    """
    vector = WIDEST_VECTOR
    while columns % vector:
        vector //= 2
    width, height = _block(columns // vector, rows, MOST_THREADS_OF_BLOCK // vector)
    if rows < min(height * FEWEST_VALUES_OF_THREAD, MOST_VALUES_OF_THREAD):
        return 0  # the rows of a block are columns of their own
    grid = _over(columns // vector, width)
    room = card.multiprocessors * (card.threads_per_multiprocessor // (width * height))
    values = _over(rows, height)
    if values < MOST_VALUES_OF_THREAD or grid > room:
        return 0
    blocks = min(_over(room, grid), _over(values, FEWEST_VALUES_OF_THREAD))
    blocks = max(blocks, _over(values, MOST_VALUES_OF_THREAD))
    return FP32 * columns * blocks * width * vector if blocks > 1 else 0


def _block(columns: int, rows: int, most: int) -> tuple[int, int]:
    """Threads of a block across columns and across rows (`set_block_dimension`)."""
    across, down = (min(most, 1 << (n.bit_length() - 1)) for n in (columns, rows))
    width = min(across, WARP)
    height = min(down, most // width)
    return min(across, most // height), height


def _over(a: int, b: int) -> int:
    return -(-a // b)
