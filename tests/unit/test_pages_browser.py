"""Pages in a real browser, where one is installed: no error, no request, nothing wider than the page, and it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, find_chromium
from page_samples import EVIL, end_point, manifest, sample_run, sample_sweep

from llmsys_exp.report.pages.layout import write_page
from llmsys_exp.report.pages.run_page import run_page
from llmsys_exp.report.pages.sweep_page import sweep_page
from llmsys_exp.runs.told import read_told
from llmsys_exp.sweeps.results.rows import results_of

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
TABLE = "[...document.querySelectorAll('table.points tbody tr')].map((row) => Number(row.dataset.n))"
SIZES = {"wide": (1280, False), "narrow": (400, True)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(find_chromium() or "", tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep of three settings; point 5 was skipped, 6 failed with words that want to be code."""
    folder = tmp_path_factory.mktemp("sweep")
    overrides = [
        [f"zero.stage={n % 3}", f"seed={n}", "method=lora" if n % 2 else "method=full"] for n in range(1, 7)
    ]
    paths, sweep = sample_sweep(folder, overrides, skipped=[5])
    for number in range(1, 5):
        end_point(paths, sweep, number, manifest(1 + number / 10, peak_gib=10 + number))
    end_point(paths, sweep, 6, None, kind="data", what=EVIL)
    write_page(
        folder / "sweep.html", sweep_page(paths, sweep, results_of(sweep, sweep.ledger(paths).states()))
    )
    return folder / "sweep.html"


def check(page: Page, width: int) -> None:
    assert page.problems() == []
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.title") != "owned"
    assert page.run(
        "[...document.querySelectorAll('figure[data-chart]')].every((one) => one.querySelector('svg'))"
    )


@pytest.mark.parametrize("size", SIZES)
def test_page_of_a_sweep_opens(browser: Browser, sweep_file: Path, size: str):
    width, dark = SIZES[size]
    page = browser.open(sweep_file, width=width, dark=dark)
    check(page, width)
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("size", SIZES)
def test_page_of_a_run_opens_and_its_settings_are_searched(browser: Browser, tmp_path: Path, size: str):
    width, dark = SIZES[size]
    run = sample_run(tmp_path / "r", manifest(1.0, name=EVIL))
    write_page(run.report, run_page(read_told(run.folder)))
    page = browser.open(run.report, width=width, dark=dark)
    check(page, width)
    page.run(
        "{const box = document.querySelector('[data-filters=all-settings]'); box.value = 'zero fastest'; box.dispatchEvent(new Event('input'))}"
    )
    assert page.run(
        "[...document.querySelectorAll('#all-settings tbody code')].map((one) => one.textContent)"
    ) == ["zero.stage"]


def test_table_is_sorted_and_filtered_and_charts_follow(browser: Browser, sweep_file: Path):
    page = browser.open(sweep_file)
    assert page.run(TABLE) == [1, 2, 3, 4, 5, 6]
    head = "[...document.querySelectorAll('table.points th')].find((one) => one.textContent === 'measured peak GiB').firstChild"
    page.run(f"{head}.click()")
    assert page.run(TABLE) == [1, 2, 3, 4, 5, 6]
    page.run(f"{head}.click()")
    assert page.run(TABLE) == [4, 3, 2, 1, 5, 6], "what has no figure stays last"
    page.run("document.querySelector('[data-state=skipped]').click()")
    page.run(
        "{const box = document.getElementById('search'); box.value = 'lora'; box.dispatchEvent(new Event('input'))}"
    )
    assert page.run(TABLE) == [3, 1]
    assert page.run("document.getElementById('count').textContent") == "2 of 6 points"
    off = "[...document.querySelectorAll('.thread.off')].map((one) => Number(one.dataset.n)).sort()"
    assert page.run(off) == [2, 4, 5, 6]
    page.run("document.getElementById('reset').click()")
    assert page.run(TABLE) == [4, 3, 2, 1, 5, 6] and page.run(off) == []
    assert page.problems() == []


def test_dragging_along_an_axis_keeps_what_is_inside_and_the_pointer_names_a_point(
    browser: Browser, sweep_file: Path
):
    page = browser.open(sweep_file, height=2000)
    places = "[...document.querySelectorAll('.grip')].map((one) => one.getBoundingClientRect()).map((one) => [one.x + one.width / 2, one.top, one.bottom])"
    x, top, bottom = page.run(places)[1]  # seed: 1 at the bottom, 6 at the top
    page.move(x, bottom - 1)
    page.move(x, bottom - 1, "mousePressed", button="left", clickCount=1)
    page.move(x, (top + bottom) / 2, button="left", buttons=1)
    page.move(x, (top + bottom) / 2, "mouseReleased", button="left", clickCount=1)
    assert page.run(TABLE) == [1, 2, 3]
    dot = "[...document.querySelectorAll('[data-chart=forecast-peak] .dot')].map((one) => one.getBoundingClientRect()).map((one) => [one.x + 5, one.y + 5])[1]"
    page.move(*page.run(dot))
    said = page.run("document.querySelector('.tip').textContent")
    assert "point 2: done" in said and "planned 10, measured 12 (20.0 %)" in said
    assert page.run("document.querySelector('tr.near').dataset.n") == "2"
    page.run("document.querySelector('button.copy').click()")
    assert page.problems() == []
