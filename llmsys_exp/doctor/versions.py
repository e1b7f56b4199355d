"""Engines and their packages: what is missing, what is out of range, what was never tried together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from llmsys_exp.doctor.finding import Finding, Reporter
from llmsys_exp.doctor.known import QUANTIZING, TRAINING, Together, differences
from llmsys_exp.doctor.look import Look
from llmsys_exp.launch.interpreter import ENGINE_PACKAGES, extra_of

_SAY = Reporter("versions")
_OPTIONAL = ("export", "quantize", "infer", "parallelism")
DISTRIBUTION = "llmsys-exp"


def check(look: Look) -> Iterator[Finding]:
    """Look at the interpreter of the workers."""
    if "problem" in look.told:
        fix = "name another with launcher.python=FILE"
        yield _SAY.problem("interpreter", f"{look.python} does not answer: {look.told['problem']}", fix)
        return
    yield from _engines(look)
    yield from _ranges(look.packages)
    for name, sets in (("training", TRAINING), ("quantising", QUANTIZING)):
        if next(iter(sets[0].versions)) in look.packages and (
            name == "training" or "gptqmodel" in look.packages
        ):
            yield _together(name, sets, look.packages)


def _engines(look: Look) -> Iterator[Finding]:
    pip = f"{look.python} -m pip"
    for step, names in ENGINE_PACKAGES.items():
        missing = [name for name in names if name not in look.packages]
        if not missing:
            yield _SAY.ok(step, f"{step}: {', '.join(_named(name, look.packages) for name in names)}")
            continue
        fix = f"{pip} install 'llmsys-exp[{extra_of(missing)}]'"
        yield _SAY.either(step not in _OPTIONAL, step, f"{step} lacks {', '.join(missing)}", fix)
    if "bitsandbytes" not in look.packages:
        yield _SAY.note(
            "bitsandbytes", "method=qlora lacks bitsandbytes", f"{pip} install 'llmsys-exp[quant]'"
        )


def _named(name: str, packages: Mapping[str, str]) -> str:
    return f"{name} {packages[name]}"


def _ranges(packages: Mapping[str, str]) -> Iterator[Finding]:
    """Versions that pyproject.toml rules out, as the installed package tells them."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        texts = []
    for text in texts:
        wanted = Requirement(text)
        if "dev" in text.partition(";")[2] or wanted.name not in packages:
            continue
        if wanted.marker is not None and "python_version" in str(wanted.marker):
            continue
        here = packages[wanted.name]
        try:
            fits = wanted.specifier.contains(Version(here), prereleases=True)
        except InvalidVersion:
            continue
        if not fits:
            said = f"{wanted.name} {here} is outside of {wanted.specifier}, which llmsys asks for"
            yield _SAY.problem(wanted.name, said, f"pip install '{wanted.name}{wanted.specifier}'")


def _together(name: str, sets: Sequence[Together], packages: Mapping[str, str]) -> Finding:
    """Say which set of versions is installed, or how far the nearest one is."""
    found = [(differences(one, packages), one) for one in sets]
    unlike, nearest = min(found, key=lambda pair: len(pair[0]))
    key = f"{name}-set"
    if not unlike:
        return _SAY.ok(key, f"{name}: a set that works together, {nearest.date}: {nearest.source}")
    told = ", ".join(f"{package} {here} (then {then})" for package, (here, then) in unlike.items())
    wanted = " ".join(f"{package}=={then}" for package, (_, then) in unlike.items())
    said = f"{name}: not a set that was tried together; nearest is that of {nearest.date}: {told}"
    return _SAY.note(key, said, f"pip install {wanted}")
