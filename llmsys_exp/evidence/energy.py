"""Energy and memory of the run's own GPUs, asked of NVML by the parent while the run goes on.

Cards since Volta count energy themselves; of others the power is sampled and summed up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from llmsys_exp.evidence import nvml
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.gpus import is_among

INTERVAL_S = 1.0
COUNTED, SAMPLED = "counter", "samples"
_J_PER_WH = 3600


@dataclass
class _Card:
    uuid: str
    handle: Any
    began_mj: int | None
    sampled_j: float = 0.0
    power_w: float | None = None
    highest_w: float = 0.0
    most_used_bytes: int = 0


class EnergyMeter:
    """Watches GPUs from `start` to `stop`."""

    def __init__(
        self,
        gpus: Sequence[str],
        *,
        open_library: Callable[[], AbstractContextManager[Any]] = nvml.opened,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Describe the meter; nothing is asked yet.

        Args:
            gpus: entries of CUDA_VISIBLE_DEVICES; every GPU where there are none.
            open_library: gives the module that answers.
            interval_s: between two samples.
        """
        self._gpus, self._open, self._interval_s = tuple(gpus), open_library, interval_s
        self._stack = ExitStack()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="energy")
        self._library: Any = None
        self._cards: list[_Card] = []
        self._began_s = self._seen_s = 0.0
        self._samples = 0

    def start(self) -> None:
        """Begin to watch.

        Raises:
            EvidenceError: when NVML does not answer, or does not show the run's GPUs.
        """
        self._library = self._stack.enter_context(self._open())
        try:
            self._cards = self._find()
        except BaseException:
            self._stack.close()
            raise
        self._began_s = self._seen_s = time.monotonic()
        self._sample()
        self._watcher.start()

    def stop(self) -> dict[str, Any] | None:
        """Return what was measured; None where nothing was started."""
        if not self._cards:
            return None
        self._ended.set()
        self._watcher.join()
        self._sample()
        cards = [self._told(card) for card in self._cards]
        self._cards = []
        self._stack.close()
        parts = [card["wh"] for card in cards]
        return {
            "wh": None if None in parts else round(sum(parts), 4),
            "seconds": round(self._seen_s - self._began_s, 2),
            "samples": self._samples,
            "gpus": cards,
        }

    def _find(self) -> list[_Card]:
        library, cards = self._library, list[_Card]()
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.text(library.nvmlDeviceGetUUID(handle))
            if not self._gpus or is_among(index, uuid, self._gpus):
                cards.append(_Card(uuid, handle, _asked(library.nvmlDeviceGetTotalEnergyConsumption, handle)))
        if not cards or (self._gpus and len(cards) != len(self._gpus)):
            raise EvidenceError(
                f"NVML shows {len(cards)} whole GPUs of {', '.join(self._gpus) or 'this machine'}"
            )
        return cards

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        now = time.monotonic()
        for card in self._cards:
            power_mw = _asked(self._library.nvmlDeviceGetPowerUsage, card.handle)
            if power_mw is not None:
                before_w, card.power_w = card.power_w, power_mw / 1000
                # between two samples the power went from one to the other
                mean_w = card.power_w if before_w is None else (before_w + card.power_w) / 2
                card.sampled_j += mean_w * (now - self._seen_s)
                card.highest_w = max(card.highest_w, card.power_w)
            memory = _asked(self._library.nvmlDeviceGetMemoryInfo, card.handle)
            card.most_used_bytes = max(card.most_used_bytes, int(memory.used) if memory is not None else 0)
        self._seen_s = now
        self._samples += 1

    def _told(self, card: _Card) -> dict[str, Any]:
        ended_mj = _asked(self._library.nvmlDeviceGetTotalEnergyConsumption, card.handle)
        counted = card.began_mj is not None and ended_mj is not None and ended_mj >= card.began_mj
        joules: float | None = None
        if counted:
            joules = (ended_mj - card.began_mj) / 1000
        elif card.power_w is not None:
            joules = card.sampled_j
        seconds = self._seen_s - self._began_s
        return {
            "uuid": card.uuid,
            "wh": None if joules is None else round(joules / _J_PER_WH, 4),
            "how": COUNTED if counted else SAMPLED,
            "mean_w": None if joules is None or not seconds else round(joules / seconds, 1),
            "highest_w": card.highest_w if card.power_w is not None else None,
            "most_used_bytes": card.most_used_bytes or None,
        }


def _asked(question: Callable[[Any], Any], handle: Any) -> Any:
    """Ask one card; None where its kind cannot say."""
    with suppress(Exception):
        return question(handle)
    return None
