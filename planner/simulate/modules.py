"""Which module runs: the name behind an allocation."""

from __future__ import annotations

from typing import Any


class ModuleNames:
    """Keeps the names of the modules that are on the way, outermost first."""

    def __init__(self) -> None:
        self._stack: list[str] = []

    def now(self) -> str:
        """The innermost module that runs forward, recomputation included; empty outside of all."""
        return self._stack[-1] if self._stack else ""

    def follow(self, model: Any) -> None:
        """Watch every module of a model."""
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._entering(name))
            module.register_forward_hook(self._left, always_call=True)

    def _entering(self, name: str) -> Any:
        def note(*_: Any) -> None:
            self._stack.append(name)

        return note

    def _left(self, *_: Any) -> None:
        self._stack.pop()
