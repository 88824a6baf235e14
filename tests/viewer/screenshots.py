"""The pictures of the page in docs/assets: python -m tests.viewer.screenshots [NAME ...] [--to FOLDER] [--theme dark]

Each is a page of a model, opened in Chromium, after some clicks.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

import ingot
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.numbers.matching import add_numbers
from ingot.viewer.numbers.number_files import check_numbers
from ingot.viewer.page import export_page, hold_weights
from tests import progress
from tests.viewer.browser import Browser, Data, chromium, go_to, missing
from tests.viewer.models import Deep, Gate
from tests.viewer.page_models import bert_12

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
_THEME = (
    "const s = document.querySelector('.theme select'); s.value = arguments[0];"
    "s.dispatchEvent(new Event('change', {bubbles: true}))"
)


def _gate() -> Data:
    program = ingot.capture(Gate().eval(), (torch.ones(5, 4),), dynamic_shapes={"x": {0: "batch"}})
    return collect_program(program, ViewOptions(numerics=True, profile=True), reference="models.py:gate").to_json()


def _bert() -> Data:
    return collect_program(bert_12(), ViewOptions(profile=True), reference="page_models.py:bert_12").to_json()


def _deep() -> Data:
    """With numbers that a user might bring: how far the results of each node spread."""
    program = ingot.capture(Deep(4).eval(), (torch.randn(4, 16),))
    view = collect_program(program, ViewOptions(weights=True, numerics=True), reference="models.py:deep")
    data: Data = hold_weights(view.to_json(), view.tensors)
    spread = {data["nodes"][int(node)]["name"]: found["std"] for node, found in data["stats"].items() if found["std"]}
    add_numbers(data, check_numbers({"deviation": spread}))
    return data


def _disassembled() -> Data:
    program = ingot.capture(Deep(4).eval(), (torch.ones(4, 16),))
    return collect_program(program, ViewOptions(disassembly=True), reference="models.py:deep").to_json()


def _search(browser: Browser, words: str) -> None:
    field = browser.one(".search input")
    field.send_keys(words)
    field.send_keys("\ue007")
    browser.settle()


def _step(browser: Browser) -> None:
    go_to(browser, "autocast")


def _selection(browser: Browser) -> None:
    go_to(browser, "decompose_complex")
    _search(browser, "op:scaled_dot")


def _memory(browser: Browser) -> None:
    browser.one("[data-tab=memory]").click()


def _weights(browser: Browser) -> None:
    browser.one("[data-tab=weights]").click()
    browser.wait(lambda: browser.texts(".weight-row"), "the list")
    browser.run("document.querySelectorAll('.weight-row')[2].click()")
    browser.wait(lambda: browser.texts("[role=gridcell]"), "the values")


def _assembly(browser: Browser) -> None:
    for pane in ("Outline", "Source", "Program", "Loop IR"):
        browser.one(f'[aria-label="Hide {pane}"]').click()
    browser.run("document.querySelector('.pane-assembly .virtual-text').scrollTop = 300")
    line = browser.one('.pane-assembly .line[data-line="30"]')
    browser.run("arguments[0].click()", line)


def _colors(browser: Browser) -> None:
    browser.run(
        "const s = document.querySelector('[aria-label=\"Color by\"]'); s.value = 'numbers:deviation';"
        "s.dispatchEvent(new Event('change', {bubbles: true}));"
        "[...document.querySelectorAll('[aria-label=\"Expand all boxes\"]')].forEach((b) => b.click())"
    )
    browser.settle()
    browser.click_graph("/gelu")


# Each with the model that it shows.
PICTURES: dict[str, tuple[Callable[[], Data], Callable[[Browser], None]]] = {
    "view_step": (_gate, _step),
    "view_selection": (_bert, _selection),
    "view_memory": (_bert, _memory),
    "view_colors": (_deep, _colors),
    "view_weights": (_deep, _weights),
    "view_assembly": (_disassembled, _assembly),
}


def _shrink(picture: bytes) -> bytes:
    """A picture of few colors, where Pillow is installed: it takes half the room."""
    if find_spec("PIL") is None:
        return picture
    from PIL import Image

    whole, made = Image.open(io.BytesIO(picture)).convert("RGB"), io.BytesIO()
    whole.resize((1500, round(whole.height * 1500 / whole.width)), Image.Resampling.LANCZOS).quantize(
        256, Image.Quantize.MAXCOVERAGE
    ).save(made, "PNG", optimize=True)
    return made.getvalue()


def take(name: str, picture: Path, theme: str = "light") -> None:
    torch.manual_seed(0)
    model, clicks = PICTURES[name]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = Path(folder) / "page.html"
        page.write_text(export_page(model()), encoding="utf-8")
        browser.open_file(page)
        browser.run(_THEME, theme)
        clicks(browser)
        time.sleep(0.5)  # what scrolls smoothly comes to rest
        complaints = browser.complaints()
        assert not complaints, complaints
        picture.write_bytes(_shrink(browser.driver.get_screenshot_as_png()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PICTURES), help="pictures; all if none is given")
    parser.add_argument("--to", type=Path, default=ASSETS, help="the folder for the pictures")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    for name in progress.count_done("pictures", arguments.names):
        take(name, arguments.to / f"{name}.png", arguments.theme)


if __name__ == "__main__":
    main()
