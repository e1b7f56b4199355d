"""Which inference engines can run on this machine, and why the others cannot: nothing is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.launch.interpreter import ENGINE_PACKAGES, missing_packages
from llmsys_exp.launch.sglang import versions_in
from llmsys_exp.launch.sglang_ready import reasons_against

HTTP_PACKAGES = ("aiohttp",)
"""What the worker needs to talk to a server."""


def inference_engines(overrides: Sequence[str], gpus: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return for each engine its interpreter, its versions and everything that keeps it from running.

    Raises:
        UserError: for an override that no configuration takes.
    """
    worker, sglang = _pythons(overrides)
    lacks = _missing(ENGINE_PACKAGES["infer"], worker)
    found = _sglang(sglang, gpus)
    no_http = _missing(HTTP_PACKAGES, worker)
    server = [*no_http, *found["reasons"]]
    return [
        {"engine": "transformers", "python": worker, "versions": {}, "reasons": lacks},
        {**found, "reasons": [*lacks, *found["reasons"]]},
        {**found, "engine": "sglang_server", "reasons": [*lacks, *server]},
        {"engine": "sglang_server at a URL", "python": worker, "versions": {}, "reasons": [*lacks, *no_http]},
    ]


def _pythons(overrides: Sequence[str]) -> tuple[str, str]:
    """Interpreters of the workers and of SGLang; Hydra is asked only where an override says something."""
    if not overrides:
        return sys.executable, sys.executable
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.launch.interpreter import interpreter
    from llmsys_exp.launch.sglang import chosen_python

    config = compose_config(list(overrides))
    return interpreter(config), chosen_python(config)


def _sglang(python: str, gpus: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    try:
        versions = versions_in(python)
    except UserError as error:
        return {"engine": "sglang", "python": python, "versions": {}, "reasons": [error.what]}
    reasons = reasons_against(versions, gpus)
    return {"engine": "sglang", "python": python, "versions": versions, "reasons": reasons}


def _missing(names: Sequence[str], python: str) -> list[str]:
    missing = missing_packages(names, python)
    return [f"lacks {', '.join(missing)}"] if missing else []
