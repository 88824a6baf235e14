"""Machine code beside the C text in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import ingot
from ingot.viewer.collection import ViewOptions, collect_program
from tests.viewer.browser import Browser, Data, export, go_to, needs_browser
from tests.viewer.models import Deep

pytestmark = [
    needs_browser,
    pytest.mark.usefixtures("quiet"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump: install binutils"),
]
_CLICK = """
const rows = [...document.querySelectorAll(`.pane-${arguments[0]} .line.can-select`)];
const row = rows.find((r) => r.querySelector('.code').textContent.includes(arguments[1]));
if (row) row.click();
return row ? row.dataset.line : null;
"""


@pytest.fixture(scope="module")
def assembled() -> Data:
    program = ingot.capture(Deep(2).eval(), (torch.ones(4, 16),))
    return collect_program(program, ViewOptions(disassembly=True)).to_json()


@pytest.fixture
def assembly_page(assembled: Data, browser: Browser, tmp_path: Path) -> Browser:
    browser.open_file(export(assembled, tmp_path))
    return browser


def linked(browser: Browser, pane: str) -> list[str]:
    return browser.texts(f".pane-{pane} .line.linked .code")


def test_a_kernel_selects_its_machine_code_and_the_other_way_round(assembly_page: Browser, assembled: Data) -> None:
    browser = assembly_page
    assert browser.texts(".pane-assembly h2") == ["Assembly"] and not linked(browser, "assembly")
    rows = len(browser.all(".pane-assembly .line"))
    whole = browser.texts(".pane-assembly .pane-note")[0]
    assert rows < 120 < int(whole.split("·")[-1].split()[0]), "lines in view are in the document"
    browser.click_graph("/layer_norm")
    browser.run(
        "[...document.querySelectorAll('.details .field')].find((f) => f.textContent.startsWith('kernel'))"
        ".querySelector('button').click()"
    )
    name = browser.wait(lambda: browser.texts(".details-title")[0].split()[0], "the kernel")
    browser.wait(lambda: f"{name}:" in linked(browser, "assembly"), "its machine code in view")
    assert linked(browser, "code"), "and its C text"
    # An instruction selects its kernel, and its line of C.
    browser.run("document.querySelector('.pane-assembly .virtual-text').scrollTop = 0")
    browser.wait(lambda: "k0:" in browser.texts(".pane-assembly .line .code"), "the first kernel")
    browser.run("document.querySelector('.pane-assembly .line[data-line=\"3\"]').click()")
    browser.wait(lambda: browser.texts(".details-title") == ["k0 kernel"], "the kernel of the instruction")
    chosen = browser.wait(lambda: browser.texts(".pane-code .line.chosen .code"), "its line of C")
    assert len(chosen) == 1 and linked(browser, "code")
    browser.wait(lambda: "select=kernel.0." in browser.driver.current_url, "the line in the address")
    saved = browser.driver.current_url
    browser.driver.get("about:blank")
    browser.open(saved)
    browser.wait(lambda: browser.texts(".pane-code .line.chosen .code") == chosen, "the same line again")


def test_a_line_of_c_selects_its_instructions(assembly_page: Browser) -> None:
    browser = assembly_page
    browser.run(_CLICK, "code", "IG_KERNEL void k0(")
    browser.wait(lambda: browser.texts(".details-title") == ["k0 kernel"], "the kernel")
    line = browser.wait(lambda: browser.run(_CLICK, "code", "= c->p[1];"), "a line with code")
    assert int(line) > 0
    shown = browser.wait(lambda: browser.texts(".pane-assembly .line.chosen .code"), "its instructions")
    assert any("mov" in text for text in shown), shown
    assert [text for text in browser.texts(".pane-code .line.chosen .code") if "c->p[1]" in text]


def test_the_pane_is_there_only_where_there_is_machine_code(gate: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(gate, tmp_path))
    assert not browser.all(".pane-assembly") and "Assembly" not in browser.texts(".pane-switches button")


def test_hostile_machine_code_is_text(assembled: Data, browser: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    strings = [hostile if text == "k0:" else text for text in assembled["lines"]["strings"]]
    stages = [*assembled["stages"][:-1], assembled["stages"][-1] | {"name": hostile}]
    data = assembled | {"lines": assembled["lines"] | {"strings": strings}, "stages": stages}
    browser.open_file(export(data, tmp_path))
    browser.wait(lambda: hostile in browser.texts(".pane-assembly .line .code"), "the text")
    assert not browser.all(".pane-assembly img")


def test_code_and_assembly_of_a_step(assembly_page: Browser) -> None:
    """The pane has the machine code at every stage, as the code pane has the C text."""
    browser = assembly_page
    for stage in ("decompose", "model.c", "captured"):
        go_to(browser, stage)
        assert "k0:" in browser.texts(".pane-assembly .line .code")
