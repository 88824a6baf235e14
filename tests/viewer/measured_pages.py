"""How fast and how large the pages of six models are: python -m tests.viewer.measured_pages [NAME ...] [--keep FOLDER]

Exports each page, opens it in Chromium, and steps through all stages, forward and back. Prints the table of
docs/reports/viewer.md. `--keep` keeps the pages; those in the folder already are measured again, not made again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch

from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.page import export_page
from tests import progress
from tests.viewer.browser import Browser, chromium, missing
from tests.viewer.page_models import PAGES

COLUMNS = ("model", "nodes", "stages", "page, MB", "first paint", "graph", "step", "95%", "its work", "most work")


def make_page(name: str, page: Path) -> None:
    torch.manual_seed(0)
    capture, shown = PAGES[name]
    view = collect_program(capture(), ViewOptions(**shown), reference=f"page_models.py:{capture.__name__}")
    page.write_text(export_page(view.to_json()), encoding="utf-8")


def _busy(browser: Browser) -> float:
    """Milliseconds of processor time that the page's main thread has used."""
    found = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(entry["value"] for entry in found if entry["name"] == "TaskDuration"))


def measure(browser: Browser, name: str, page: Path) -> str:
    """A row of the table."""
    browser.open_file(page)
    browser.wait(lambda: "first-contentful-paint" in browser.marks(), "the first paint")
    marks = browser.marks()
    browser.settle()
    stages = len(browser.all(".stage"))
    nodes = browser.one(".pane-graph .pane-note").get_property("textContent").split("·")[-1].split()[0]
    browser.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    steps, work = [], []
    for label in ("Next stage", "Previous stage"):
        for _ in range(stages - 1):
            before = _busy(browser)
            steps.append(browser.step(label))
            work.append(_busy(browser) - before)
    complaints = browser.complaints()
    assert not complaints, complaints
    last = statistics.quantiles(steps, n=20)[-1]
    return (
        f"| {name} | {int(nodes):,} | {stages} | {page.stat().st_size / 1e6:.2f} | "
        f"{marks['first-contentful-paint']:.0f} | {marks['ingot-first-graph']:.0f} | "
        f"{statistics.median(steps):.0f} | {last:.0f} | {statistics.median(work):.0f} | {max(work):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PAGES), help="models; all if none is given")
    parser.add_argument("--keep", type=Path, help="the folder for the pages")
    arguments = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    with tempfile.TemporaryDirectory() as folder:
        pages = arguments.keep or Path(folder)
        pages.mkdir(exist_ok=True)
        print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n", flush=True)
        for name in progress.count_done("pages", arguments.names):
            page = pages / f"{PAGES[name][0].__name__}.html"
            if not page.exists():
                make_page(name, page)
            with chromium() as browser:  # a new one each time: nothing is compiled or cached yet
                print(measure(browser, name, page), flush=True)
        load = os.getloadavg()[0]
        print(f"\n{os.cpu_count()} cores, {load:.1f} processes ready to run in the last minute")


if __name__ == "__main__":
    main()
