"""The files that a run reads, as the record tells of them: the model's and the data's, with hashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from llmsys_exp.config.schema import Config
from llmsys_exp.evidence.data_files import data_facts, data_files, data_paths
from llmsys_exp.evidence.errors import noted
from llmsys_exp.evidence.files import Hashed, Hashing, hash_at_once
from llmsys_exp.evidence.hashes import HashStore
from llmsys_exp.evidence.model_files import model_facts, model_files

DATA, MODEL = "data", "model"


class RunFiles:
    """Hashes files of a run until it is closed."""

    def __init__(
        self,
        config: Config,
        inputs: Mapping[str, Any],
        on_done: Callable[[], None],
        *,
        store: HashStore | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            config: without `auto`.
            inputs: what was found, see `inputs.find.Inputs`.
            on_done: called in a thread when the large files are hashed, too.
            store: of known hashes; the user's own by default.
        """
        self._config, self._inputs = config, inputs
        self._store = store or HashStore()
        self._hashing = Hashing(self._store, on_done)
        self._found: dict[str, Hashed] = {}
        self._notes: list[str] = []
        self._paths: dict[str, str] = {}

    def close(self) -> None:
        """Hash nothing any more."""
        self._hashing.close()

    @property
    def is_hashing(self) -> bool:
        """Whether large files are not hashed yet."""
        return any(found.waiting for found in self._found.values())

    def look(self) -> bool:
        """Hash what is there and was not before; return whether there was any."""
        self._paths = noted(self._notes, DATA, lambda: data_paths(self._config, self._inputs), {})
        wanted = noted(self._notes, MODEL, lambda: model_files(self._config, self._inputs), {})
        wanted = {DATA: data_files(self._paths), **wanted}
        new = {name: files for name, files in wanted.items() if files and name not in self._found}
        for name, files in new.items():
            self._found[name] = hash_at_once(files, self._store)
            self._hashing.add(self._found[name])
        return bool(new)

    def finish(self, timeout_s: float) -> None:
        """Wait for hashes that are still missing."""
        if not self._hashing.finish(timeout_s):
            self._notes.append(f"files: some were still not hashed {timeout_s:.0f} s after the end")

    def facts(self, results: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the manifest's parts `model` and `data` as far as they are known, and notes.

        Args:
            results: of the steps; empty before they are done.
        """
        notes = list(self._notes)
        for found in self._found.values():
            notes += [f"files: {problem}" for problem in found.problems]
        data, changed = data_facts(self._paths, self._hashes(DATA), results)
        model = model_facts(self._config, self._inputs)
        if MODEL in self._found:
            model["files"] = self._hashes(MODEL)
        sources = {"adapter": self._inputs.get("adapter_folder"), "tokenizer": self._config.model.tokenizer}
        for name, source in sources.items():
            if name in self._found:
                model[name] = {"source": source, "files": self._hashes(name)}
        return {MODEL: model, DATA: data}, notes + changed

    def _hashes(self, name: str) -> dict[str, Any]:
        return deepcopy(self._found[name].facts) if name in self._found else {}
