"""Panes, texts and panels of the page in a real browser."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.viewer.browser import Browser, Data, export, needs_browser

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


def test_two_files_are_shown_beside_each_other(gate: Data, browser: Browser, tmp_path: Path) -> None:
    other = copy.deepcopy(
        {name: gate[name] for name in ("title", "reference", "kernels", "origins", "profile", "memory")}
    )
    other |= {"title": "before", "facts": gate["facts"]}
    browser.open_file(export(gate | {"compare": other}, tmp_path))
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
