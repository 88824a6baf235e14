"""Panes, texts and panels of the page in a real browser."""

from __future__ import annotations

import struct
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch

import ingot
from ingot.viewer.collection import ViewOptions, collect_program
from tests.viewer.browser import Browser, Data, export, go_to, needs_browser
from tests.viewer.models import Gate

pytestmark = [needs_browser, pytest.mark.usefixtures("quiet")]
ARROW_RIGHT, ENTER, ESCAPE, SHIFT = "\ue014", "\ue007", "\ue00c", "\ue008"


def test_panes_are_hidden_shown_and_resized(gate_page: Browser) -> None:
    gate_page.one('[aria-label="Hide Source"]').click()
    gate_page.wait(lambda: not gate_page.all(".pane-source"), "a page without the source")
    gate_page.run(
        "[...document.querySelectorAll('.pane-switches button')].find((b) => b.textContent === 'Source').click()"
    )
    gate_page.one(".pane-source")
    bar = gate_page.one('.split-row > [role=separator][aria-label="Resize side"]')
    before = int(bar.get_attribute("aria-valuenow"))
    gate_page.run("arguments[0].focus()", bar)
    gate_page.keys(ARROW_RIGHT)
    gate_page.wait(lambda: int(bar.get_attribute("aria-valuenow")) > before, "a wider pane")
    assert gate_page.texts(".fact-name dd") == ["captured"], "the same key does not step there"


def test_profile_memory_and_dims_are_shown(gate: Data, gate_page: Browser) -> None:
    gate_page.one("[data-tab=profile]").click()
    rows = gate_page.wait(lambda: gate_page.texts("table.data tbody th"), "the table")
    assert rows[0] == "whole call" and "fc" in rows
    launches = [launch for launch in gate["profile"]["launches"] if launch["effort"] and launch["seconds"]]
    assert len(gate_page.all("circle.launch")) == len(launches)
    gate_page.run("document.querySelector('circle.launch').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    gate_page.wait(lambda: gate_page.texts(".details-title"), "the loop behind a launch")
    gate_page.one("[data-tab=memory]").click()
    gate_page.wait(lambda: len(gate_page.all(".buffer")) == len(gate["memory"]["buffers"]), "the plan")
    gate_page.one("[data-tab=dims]").click()
    assert "batch" in gate_page.wait(lambda: gate_page.texts("table.data tbody th"), "the dims")[0]
    assert not gate_page.all("[data-tab=quantization]"), "a panel is shown only where the data has it"


def test_an_address_says_what_is_shown(gate: Data, browser: Browser, tmp_path: Path) -> None:
    page = export(gate, tmp_path)
    browser.open_file(page)
    go_to(browser, "autocast")
    browser.click_graph("/relu")
    browser.wait(lambda: "select=node" in browser.driver.current_url, "the selection in the address")
    saved = browser.driver.current_url
    browser.one("[data-tab=memory]").click()
    browser.wait(lambda: "tab=memory" in browser.driver.current_url, "the tab in the address")
    browser.driver.get("about:blank")
    browser.open(saved)
    assert browser.texts(".fact-name dd") == ["autocast"] and browser.texts(".details-title") == ["relu operator"]
    for wrong in (
        "tab=quantization",
        "stage=999&select=node.99999.",
        "stage=x&select=kernel.-1",
        "select=__proto__.1",
        "%",
    ):
        browser.driver.get("about:blank")
        browser.open(f"{page.as_uri()}#{wrong}")
        assert browser.texts(".fact-name dd") == ["captured"] and browser.texts(".pane-details h2") == ["About"], wrong


def test_two_files_are_shown_beside_each_other(gate: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(gate | {"compare": gate | {"title": "before"}}, tmp_path))
    browser.one("[data-tab=profile]").click()
    browser.wait(lambda: len(browser.all(".time-canvas")) == 2, "two time lines")
    assert "ratio" in browser.texts("table.data thead th")
    assert "1.00×" in " ".join(browser.texts("table.data tbody td"))
    browser.one("[data-tab=memory]").click()
    browser.wait(lambda: len(browser.all(".memory-plot")) == 2, "two plans")


def test_quantization_and_constraints_are_shown(gate: Data, browser: Browser, tmp_path: Path) -> None:
    layer = {"node": 5, "name": "linear", "module": "fc", "operator": "linear", "own": 12.5, "total": 31.0}
    layer |= {"range_use": 0.8, "clipped": 0.01, "worth_leaving": True}
    layer |= {"values": {"low": -1.0, "high": 1.0, "counts": [1, 4, 2]}}
    layer |= {"own_errors": {"low": -0.25, "high": 0.25, "counts": [0, 3, 4, 1]}, "total_errors": None}
    exact = layer | {"name": "out", "module": "out", "own": None, "total": None, "worth_leaving": False}
    exact |= {"range_use": None, "clipped": None, "values": None, "own_errors": None}
    report = {"result": 30.2, "text": "30.2 dB", "layers": [exact, layer]}
    constraint = {"text": "batch % 2 == 0", "place": 0}
    browser.open_file(export(gate | {"quantization": report, "constraints": [constraint]}, tmp_path))
    browser.one("[data-tab=quantization]").click()
    browser.wait(lambda: browser.texts("table.data tbody th") == ["out", "fc"], "the layers")
    assert "exact" in browser.texts("table.data tbody td") and len(browser.all(".histogram rect")) == 7
    assert "±0.25" in browser.texts(".histogram figcaption")
    browser.run(
        "[...document.querySelectorAll('.card button')].find((b) => b.textContent === 'worst by itself').click()"
    )
    browser.wait(lambda: browser.texts("table.data tbody th") == ["fc", "out"], "the worst first")
    browser.one("[data-tab=dims]").click()
    browser.wait(lambda: "batch % 2 == 0" in browser.texts("table.data tbody th"), "the constraint")
    assert browser.texts(".dims button.link"), "who asked for it"


def test_two_graphs_are_shown_beside_each_other(gate: Data, browser: Browser, tmp_path: Path) -> None:
    program = ingot.capture(Gate().eval(), (torch.ones(7, 4),))
    other = collect_program(program, ViewOptions(), title="before").to_json()
    browser.open_file(export(gate | {"compare": other}, tmp_path))
    browser.one("[data-tab=graphs]").click()
    second = "return window.ingotSecondGraph"
    browser.wait(lambda: browser.run(f"{second} !== undefined && !window.ingotSecondGraph.isPending()"), "two graphs")
    assert browser.texts(".pane-graph h2") == ["Gate", "before"]
    chosen = "[...document.querySelectorAll('.pane-graph .pane-header select')]"
    stages = f"return {chosen}.map((s) => s.selectedOptions[0].textContent)"
    assert browser.run(stages) == ["captured", "captured"]
    browser.run(
        "const s = document.querySelector('.pane-graph .pane-header select');"
        "s.selectedIndex = [...s.options].findIndex((o) => o.textContent === 'decompose');"
        "s.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.wait(lambda: browser.run(stages) == ["decompose", "decompose"], "the same stage in both")
    browser.settle()
    before = browser.run(f"{second}.paints")
    browser.click_graph("/relu")
    browser.wait(lambda: browser.texts(".details-title") == ["relu operator"], "the node")
    browser.wait(lambda: browser.run(f"{second}.paints") > before, "the other graph drawn again")
    assert browser.run(f"{second}.selected()") == ["/relu"] == browser.graph("selected()")
    browser.click_graph("/relu", second=True)
    browser.wait(lambda: browser.run(f"{second}.selected()") == ["/relu"], "the selection, as it was")


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_graph_is_saved_as_a_picture(gate: Data, browser: Browser, tmp_path: Path, kind: str) -> None:
    hostile = "&</text><script>alert(1)</script>"
    renamed = [node | {"target": hostile} if node["name"] == "relu" else node for node in gate["nodes"]]
    browser.open_file(export(gate | {"title": "Gate/../it", "nodes": renamed}, tmp_path))
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    browser.run(f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{kind.upper()}').click()")
    file = tmp_path / f"Gate_.._it_captured.{kind}"
    browser.wait(lambda: file.exists() and file.stat().st_size, str(file))
    content = file.read_bytes()
    if kind == "png":
        width, height = struct.unpack(">II", content[16:24])
        assert content.startswith(b"\x89PNG") and width > 400 and height > 800
        return
    root = xml.etree.ElementTree.fromstring(content)
    name = "{http://www.w3.org/2000/svg}"
    texts = {element.text or "" for element in root.iter(f"{name}text")}
    assert {"linear", "cond"} <= texts and any("<script>" in text and "&" in text for text in texts), texts
    tags = {element.tag.removeprefix(name) for element in root.iter()}
    assert tags == {"svg", "rect", "g", "clipPath", "path", "text"}
    assert len(list(root.iter(f"{name}path"))) > browser.graph("drawn.cells")


def press_find(browser: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(browser.driver).key_down(Keys.CONTROL).send_keys("f").key_up(Keys.CONTROL).perform()


@pytest.mark.parametrize(
    ("pane", "words"), [("program", "aten.linear"), ("source", "self.out"), ("loop_ir", "map"), ("code", "ingot_run(")]
)
def test_find_in_a_text(deep: Data, gate: Data, browser: Browser, tmp_path: Path, pane: str, words: str) -> None:
    data = gate if pane == "source" else deep
    browser.open_file(export(data, tmp_path))
    browser.run(f"document.querySelector('.pane-{pane} .virtual-text').focus()")
    press_find(browser)
    browser.one(f".pane-{pane} .find-bar input").send_keys(words.upper())
    browser.wait(lambda: "".join(browser.texts("mark.current")).lower() == words, "the match")
    at, total = browser.texts(".find-count")[0].split(" of ")
    place = "const m = document.querySelector('mark.current'); return [m.closest('.line').dataset.line, m.offsetLeft]"
    if pane == "code":
        assert int(browser.run(place)[0]) > 60, "a line that was not in the document"
    # Every line of the text is searched, in the document or not.
    seen = []
    for _ in range(int(total)):
        seen.append(tuple(browser.run(place)))
        before = browser.texts(".find-count")
        browser.keys(ENTER)
        if int(total) > 1:
            browser.wait(lambda before=before: browser.texts(".find-count") != before, "the next match")
    assert len(set(seen)) == int(total) and browser.texts(".find-count")[0].startswith(f"{at} of")
    visible = """
    const mark = document.querySelector('mark.current').getBoundingClientRect();
    const text = document.querySelector(arguments[0]).getBoundingClientRect();
    return mark.top >= text.top && mark.bottom <= text.bottom && mark.left >= text.left && mark.right <= text.right;
    """
    assert browser.run(visible, f".pane-{pane} .virtual-text")
    browser.keys("z" * 9)
    browser.wait(lambda: browser.texts(".find-count") == ["nothing found"], "no match")
    browser.keys(ESCAPE)
    browser.wait(lambda: not browser.all(".find-bar") and not browser.all("mark"), "the text alone")
    assert browser.run("return document.activeElement.className") == "virtual-text"
