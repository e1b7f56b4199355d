"""What the documents promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*.md")]


def test_the_map_is_current():
    done = subprocess.run([sys.executable, "scripts/map.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run: python scripts/map.py"


def test_the_readme_promises_two_commands_that_make_knows():
    done = subprocess.run(
        [sys.executable, "scripts/readme_commands.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    commands = done.stdout.splitlines()
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{c.split()[1]}:", makefile, flags=re.MULTILINE) for c in commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_no_page_names_a_path_of_one_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w./])/(work|root|home)/", page.read_text()), page
