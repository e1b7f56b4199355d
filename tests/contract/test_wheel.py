"""The built wheel, run from an empty folder without the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--disable-pip-version-check",
        "-w",
        str(folder),
    ]
    subprocess.run([*build, str(ROOT)], check=True)
    [wheel] = folder.glob("llmsys_exp-*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_it_carries_configuration_experiments_and_tables(unpacked):
    shipped = unpacked / "llmsys_exp/_shipped/conf"
    assert (shipped / "config.yaml").exists()
    assert (shipped / "experiment/quickstart.yaml").exists()
    assert (shipped / "experiment/data/house_style_train.json").exists()
    assert (unpacked / "planner/data/gpus.yaml").exists()
    pages = unpacked / "llmsys_exp/report/pages"
    assert {"sweep.html", "run.html"} <= {path.name for path in (pages / "templates").iterdir()}
    assert {"page.css", "page.js"} <= {path.name for path in (pages / "assets").iterdir()}
    assert (unpacked / "hydra_plugins/llmsys_lease/launcher.py").exists()
    assert not (unpacked / "hydra_plugins/__init__.py").exists(), "other plug-ins share the package"


def test_it_plans_from_an_empty_folder_without_torch(unpacked, tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from llmsys_exp.cli.main import run;"
        "import planner; assert planner.__file__.startswith(sys.argv[1]), planner.__file__;"
        "code = run(['plan', 'experiment=quickstart', '--json']);"
        "assert not {'torch', 'transformers', 'deepspeed'} & set(sys.modules); sys.exit(code)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(unpacked)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["fits"]
    assert list(tmp_path.iterdir()) == []
