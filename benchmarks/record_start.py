"""How long the record holds up the start of a run: whole wait, processor time, and hashes of large weights.

    python benchmarks/record_start.py [GIB]

Weights of GIB gibibytes (default 2) are made in a scratch folder and recorded three times: never seen, hashed
beside a run; then known by the store of hashes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from llmsys_exp.config.plain import from_plain
from llmsys_exp.runs.facts import Asked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording

SHARDS = 4


def make_model(folder: Path, gib: float) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    nbytes = int(gib * (1 << 30)) // SHARDS
    names = {}
    for number in range(SHARDS):
        file = folder / f"model-{number}.safetensors"
        tensor = {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}
        header = json.dumps({f"t{number}": tensor}).encode()
        block = os.urandom(1 << 20)
        with file.open("wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            for _ in range(nbytes >> 20):
                stream.write(block)
            stream.truncate(8 + len(header) + nbytes)
        os.utime(file, (1, 1))
        names[f"t{number}"] = file.name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def processor_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(base / "cache")
        make_model(base / "model", gib)
        config = from_plain({"model": {"path": str(base / "model")}})
        inputs = {"model_folder": str(base / "model"), "device": "cpu"}
        asked = Asked(config, (), ["llmsys"], [], inputs, sys.executable)
        for name in ("never seen", "known", "known"):
            paths = RunPaths(base / f"run-{time.monotonic_ns()}")
            paths.folder.mkdir()
            began, used = time.monotonic(), processor_s()
            with Recording(paths, asked) as recording:
                waited, start_s = time.monotonic() - began, processor_s() - used
                while recording.is_hashing:
                    time.sleep(0.01)
                hashed_s = time.monotonic() - began
            load = os.getloadavg()[0]
            print(
                f"{name:10}  start waits {waited:.2f} s ({start_s:.2f} s of processor), "
                f"{gib:g} GiB hashed after {hashed_s:.2f} s; load {load:.1f} on {os.cpu_count()} cores"
            )


if __name__ == "__main__":
    main()
