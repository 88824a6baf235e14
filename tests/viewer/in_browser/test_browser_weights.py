"""The table of a weight's values in a real browser, served and exported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.page import export_page, hold_weights
from ingot.viewer.server import PageServer, files_of
from ingot.viewer.view_data import ViewData
from tests.viewer.browser import Browser, needs_browser
from tests.viewer.test_weights import Large

pytestmark = [needs_browser, pytest.mark.usefixtures("quiet")]
HOSTILE = "<b>weight</b>"


class Zoo(nn.Module):
    """Buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        odd = torch.tensor([[0.1, math.nan, math.inf], [-math.inf, -0.0, 1e-30]])
        self.register_buffer("f32", odd)
        self.register_buffer("brain", torch.tensor([0.1, 3.0, math.inf]).bfloat16())
        self.register_buffer("f16", torch.tensor([0.1, 65504.0, 6e-8]).half())
        self.register_buffer("wide", torch.tensor([2**53 + 1, -(2**62)]))
        self.register_buffer("f64", torch.tensor([0.1], dtype=torch.float64))
        self.register_buffer("turn", torch.tensor([1 - 2j, complex(math.nan, -math.inf)]))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("byte", torch.tensor([[-8, 7]], dtype=torch.int8))
        self.register_buffer("point", torch.tensor(2.5))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("deep", torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).float())

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.point, {name: buffer * 1 for name, buffer in self.named_buffers() if name != "point"}


EXPECTED = {
    "f32": ["0.1", "nan", "inf", "-inf", "-0", "1e-30"],
    "brain": ["0.1001", "3", "inf"],
    "f16": ["0.099976", "65504", "5.9605e-8"],
    "wide": ["9007199254740993", "-4611686018427387904"],
    "f64": ["0.1"],
    "turn": ["1-2i", "nan-infi"],
    "flag": ["true", "false"],
    "byte": ["-8", "7"],
    "point": ["2.5"],
}


@pytest.fixture(scope="module")
def zoo() -> ViewData:
    return collect_program(ingot.capture(Zoo().eval(), (torch.ones(2),)), ViewOptions(weights=True))


@pytest.fixture(params=["served", "exported"])
def weights_page(zoo: ViewData, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Browser]:
    data = zoo.to_json()
    data["nodes"] = [item | {"target": HOSTILE} if item["name"] == "b_flag" else item for item in data["nodes"]]
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    if request.param == "exported":
        file = tmp_path / "page.html"
        file.write_text(export_page(hold_weights(data, zoo.tensors)), encoding="utf-8")
        browser.open_file(file)
        yield browser
        return
    with PageServer(files_of(data), weights=zoo.tensors) as server:
        server.start()
        browser.open(server.url)
        yield browser
        browser.driver.get("about:blank")


def pick(browser: Browser, name: str) -> None:
    browser.wait(lambda: browser.texts(".weight-row"), "the list")
    browser.run(
        "[...document.querySelectorAll('.weight-row')].find((b) => b.firstChild.textContent === arguments[0]).click()",
        name,
    )
    browser.wait(lambda: browser.texts(".weight-values h3") == [name], name)


def cells(browser: Browser) -> list[str]:
    """What the table shows, once all of it is there."""
    return browser.wait(  # type: ignore[no-any-return]
        lambda: (found := browser.texts("[role=gridcell]")) and "…" not in found and found, "the values"
    )


def test_values_of_every_dtype(weights_page: Browser) -> None:
    weights_page.one("[data-tab=weights]").click()
    for name, expected in EXPECTED.items():
        pick(weights_page, HOSTILE if name == "flag" else name)
        weights_page.wait(lambda expected=expected: cells(weights_page) == expected, f"{name}: {expected}")
    assert not weights_page.all(".weight-row b")
    pick(weights_page, "empty")
    weights_page.wait(lambda: "It has no values." in weights_page.texts(".weight-values .empty"), "nothing")


def test_statistics_stand_above_the_values(weights_page: Browser) -> None:
    weights_page.one("[data-tab=weights]").click()
    pick(weights_page, "f32")
    expected = ["min0", "max0.1", "mean0.033333", "std0.04714", "zeros1", "nan1", "inf2"]
    weights_page.wait(lambda: weights_page.texts(".weight-stats div") == expected, str(expected))
    pick(weights_page, "turn")
    weights_page.wait(lambda: not weights_page.texts(".weight-stats div"), "nothing of complex numbers")


def test_a_slice_of_many_dims(weights_page: Browser) -> None:
    weights_page.one("[data-tab=weights]").click()
    pick(weights_page, "deep")
    assert cells(weights_page)[:6] == ["0", "1", "2", "3", "4", "5"] and len(cells(weights_page)) == 20
    for label, index in (("dim 0", 1), ("dim 1", 2)):
        weights_page.run(
            "const f = document.querySelector(`[aria-label='${arguments[0]}']`); f.value = arguments[1];"
            "f.dispatchEvent(new Event('change', {bubbles: true}))",
            label,
            index,
        )
    weights_page.wait(lambda: cells(weights_page)[0] == "100" and cells(weights_page)[-1] == "119", "the last slice")


@pytest.mark.parametrize("name", ["brain", "deep", "turn", "flag", "wide", "empty", "point"])
def test_a_weight_is_saved(weights_page: Browser, zoo: ViewData, tmp_path: Path, name: str) -> None:
    shown = HOSTILE if name == "flag" else name
    weights_page.one("[data-tab=weights]").click()
    pick(weights_page, shown)
    weights_page.run(
        "document.querySelector('.weight-values .card-header a, .weight-values .card-header button').click()"
    )
    file = tmp_path / ("_b_weight_b_.npy" if name == "flag" else f"{name}.npy")
    weights_page.wait(file.exists, str(file))
    weights_page.wait(lambda: not list(tmp_path.glob("*.crdownload")) and file.stat().st_size > 100, "all of it")
    tensor = dict(Zoo().named_buffers())[name]
    expected = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    found = np.load(file)
    assert found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc")


def test_a_selected_parameter_leads_to_its_values(weights_page: Browser) -> None:
    weights_page.click_graph("/add")
    weights_page.run(
        "[...document.querySelectorAll('.details button.link')].find((b) => b.textContent === 'b_point').click()"
    )
    weights_page.wait(lambda: weights_page.texts(".details-title") == ["b_point buffer"], "the buffer")
    weights_page.run(
        "[...document.querySelectorAll('.details button.link')].find((b) => b.textContent === 'every value').click()"
    )
    assert cells(weights_page) == ["2.5"]
    weights_page.wait(lambda: "tab=weights" in weights_page.driver.current_url, "the tab in the address")


def test_a_large_embedding_is_shown_at_once(zoo: ViewData, browser: Browser) -> None:
    data, pool = zoo.to_json(), zoo.tensors
    assert pool is not None
    number = pool.add_lazy(Large())
    data["weights"] = pool.describe()
    stages = [
        s | {"weights": [s["weights"][0], number, *s["weights"][2:]] if s["weights"] else []} for s in data["stages"]
    ]
    data |= {"stages": stages}
    name = data["nodes"][stages[0]["weights"][0]]["target"]
    with PageServer(files_of(data), weights=pool) as server:
        server.start()
        browser.open(f"{server.url}#tab=weights")
        pick(browser, name)
        Large.most = 0
        assert cells(browser)[:2] == ["0", "1"]
        seconds = browser.run(
            "const e = performance.getEntriesByType('resource').filter((r) => r.name.includes('/weights/'));"
            "return Math.max(...e.map((r) => r.responseEnd)) - Math.min(...e.map((r) => r.startTime))"
        )
        assert seconds < 2000 and len(browser.all("[role=gridcell]")) < 2000
        for label, index in (("row", 49_990), ("column", 4_090)):
            browser.run(
                "const f = document.querySelector(`.value-controls [aria-label='${arguments[0]}']`);"
                "f.value = arguments[1]; f.dispatchEvent(new Event('change', {bubbles: true}))",
                label,
                index,
            )
            browser.wait(lambda label=label: _at(browser, label) > 3000, f"another {label}")
        browser.wait(lambda: str(49_999 * 10_000 + 4_095) in cells(browser), "the last value")
        assert Large.most <= 1024, "blocks of what is in view"
        browser.driver.get("about:blank")


def _at(browser: Browser, label: str) -> int:
    return int(
        browser.run("return document.querySelector(`.value-controls [aria-label='${arguments[0]}']`).value", label)
    )


def test_a_page_without_values_says_nothing_of_them(zoo: ViewData, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(export_page(hold_weights(zoo.to_json(), None)), encoding="utf-8")
    browser.open_file(page)
    assert not browser.all("[data-tab=weights]")


def test_what_cannot_be_read_is_said(zoo: ViewData, browser: Browser) -> None:
    data = zoo.to_json()
    with PageServer(files_of(data), weights=None) as server:
        server.start()
        browser.open(f"{server.url}#tab=weights")
        pick(browser, "point")
        browser.wait(lambda: "404" in " ".join(browser.texts("[role=alert]")), "why there is nothing")
        assert browser.complaints(), "the browser says it too"
        browser.driver.get("about:blank")
