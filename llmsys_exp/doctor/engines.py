"""Which inference engines can run on this machine, and why the others cannot: nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.known import SERVING, differences
from llmsys_exp.doctor.look import Look
from llmsys_exp.errors import UserError
from llmsys_exp.launch.interpreter import ENGINE_PACKAGES, missing_packages
from llmsys_exp.launch.sglang import versions_in
from llmsys_exp.launch.sglang_ready import reasons_against

HTTP_PACKAGES = ("aiohttp",)
"""What the worker needs to talk to a server."""
_SAY = Reporter("engines")


def inference_engines(look: Look) -> list[dict[str, Any]]:
    """Return for each engine its interpreter, its versions and everything that keeps it from running."""
    worker = look.python
    lacks = _missing(ENGINE_PACKAGES["infer"], worker)
    found = _sglang(look)
    no_http = _missing(HTTP_PACKAGES, worker)
    server = [*no_http, *found["reasons"]]
    return [
        {"engine": "transformers", "python": worker, "versions": {}, "reasons": lacks},
        {**found, "reasons": [*lacks, *found["reasons"]]},
        {**found, "engine": "sglang_server", "reasons": [*lacks, *server]},
        {"engine": "sglang_server at a URL", "python": worker, "versions": {}, "reasons": [*lacks, *no_http]},
    ]


def serving_findings(look: Look, engines: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a line an engine; of SGLang, whether its set of versions was measured."""
    found: list[Finding] = []
    for engine in engines:
        name, reasons = engine["engine"], engine["reasons"]
        versions = ", ".join(f"{package} {version}" for package, version in engine["versions"].items())
        where = f" in {engine['python']}" if engine["python"] != look.python else ""
        where += f" ({versions})" if versions else ""
        if reasons:
            fix = "inference.sglang.python=FILE names the interpreter that holds it; inference=transformers"
            found.append(
                _SAY.note(name, f"{name}: {'; '.join(reasons)}{where}", fix if "sglang" in name else "")
            )
        else:
            found.append(_SAY.ok(name, f"{name}: ready{where}"))
    sglang = engines[1]["versions"]
    unlike = differences(SERVING[0], sglang) if "sglang" in sglang else {}
    if unlike:
        told = ", ".join(f"{package} {here} (then {then})" for package, (here, then) in unlike.items())
        found.append(_SAY.note("serving-set", f"SGLang: not the set that was measured: {told}", ""))
    return found


def pythons(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what overrides say of interpreters and folders; Hydra is asked only where there are some.

    Raises:
        UserError: for an override that no configuration takes.
    """
    if not overrides:
        return {}
    from pathlib import Path

    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.launch.interpreter import interpreter
    from llmsys_exp.launch.sglang import chosen_python

    config = compose_config(list(overrides))
    return {
        "python": interpreter(config),
        "sglang_python": chosen_python(config),
        "outputs": Path(config.paths.outputs),
        "cache": Path(config.paths.cache),
    }


def _sglang(look: Look) -> dict[str, Any]:
    python = look.sglang_python
    try:
        versions = versions_in(python)
    except UserError as error:
        return {"engine": "sglang", "python": python, "versions": {}, "reasons": [error.what]}
    reasons = reasons_against(versions, look.gpus)
    return {"engine": "sglang", "python": python, "versions": versions, "reasons": reasons}


def _missing(names: Sequence[str], python: str) -> list[str]:
    try:
        missing = missing_packages(names, python)
    except UserError as error:
        return [error.what]
    return [f"lacks {', '.join(missing)}"] if missing else []
