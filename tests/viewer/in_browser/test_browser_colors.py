"""Numbers of the user's, and the colors of the graph, in a real browser."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ingot.viewer.numbers.matching import add_numbers
from ingot.viewer.numbers.number_files import check_numbers
from tests.viewer.browser import Browser, Data, export, go_to, needs_browser

pytestmark = [needs_browser, pytest.mark.usefixtures("quiet")]
HOSTILE = "<img src=x onerror=alert(1)>"
_CHOOSE = """
const s = document.querySelector('[aria-label="Color by"]');
s.selectedIndex = [...s.options].findIndex((o) => o.textContent === arguments[0]);
s.dispatchEvent(new Event('change', {bubbles: true}));
return s.selectedIndex;
"""
_WRITE = """
const field = document.querySelector(`[aria-label="${arguments[0]}"]`);
field.value = arguments[1];
field.dispatchEvent(new Event('input', {bubbles: true}));
"""


@pytest.fixture
def numbered(gate: Data) -> Data:
    """Numbers of nodes, a module and a kernel."""
    data: Data = json.loads(json.dumps(gate))
    kernel = data["kernels"][0]["name"]
    latency = {"unit": "ms", "values": {"linear": 8.0, "relu": 2.0, "out": 5.0}}
    given = {"latency": latency, "bytes": {kernel: 4096, "gone": 1}, HOSTILE: {"relu": 1, HOSTILE: 2}}
    add_numbers(data, check_numbers(given))
    return data


@pytest.fixture
def colored(numbered: Data, browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    browser.open_file(export(numbered, tmp_path))
    yield browser
    browser.run("localStorage.clear()")


def fill(browser: Browser, key: str) -> str | None:
    return browser.run(f"return window.ingotGraph.fill({key!r})")  # type: ignore[no-any-return]


def choose(browser: Browser, title: str) -> None:
    assert browser.run(_CHOOSE, title) >= 0, title
    browser.settle()


def legend(browser: Browser) -> str:
    return " ".join(browser.texts(".legend-row")[0].split())


def test_numbers_are_shown_with_the_selection(colored: Browser, numbered: Data) -> None:
    colored.click_graph("/relu")
    rows = colored.wait(lambda: colored.texts(".own-numbers tr"), "the numbers of a node")
    assert rows[0] == "latency2 ms" and rows[-1] == f"{HOSTILE}1"
    assert not colored.all(".details img"), "a title stays text"
    colored.run("[...document.querySelectorAll('.details .field')].find((f) => f.textContent.startsWith('kernel'))"
                ".querySelector('button').click()")  # fmt: skip
    colored.wait(lambda: "kernel" in colored.texts(".details-title")[0], "the kernel")
    if colored.texts(".details-title")[0].startswith(f"{numbered['kernels'][0]['name']} "):
        assert "bytes4096" in colored.texts(".own-numbers tr")
    notes = colored.run("return document.querySelector('.notes-button').title")
    assert "'gone'" in notes and HOSTILE in notes


def test_kernels_have_columns(colored: Browser, numbered: Data) -> None:
    colored.one("[data-tab=profile]").click()
    colored.wait(lambda: colored.texts("table.data tbody th"), "the table")
    assert not colored.all(".own-number"), "numbers of kernels are beside kernels alone"
    colored.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'by kernel').click()")
    colored.wait(lambda: colored.texts("th.own-number") == ["bytes"], "the column")
    kernels = colored.texts("table.data tbody th")
    cells = colored.texts("td.own-number")
    assert dict(zip(kernels, cells, strict=True))[numbered["kernels"][0]["name"]] == "4096" and "–" in cells
    colored.run("document.querySelector('.chooser summary').click()")
    colored.one(".chooser-list input").click()
    colored.wait(lambda: not colored.all(".own-number"), "the column away")


def test_numbers_of_kernels_without_a_profile(numbered: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(numbered | {"profile": None}, tmp_path))
    browser.one("[data-tab=profile]").click()
    kernel = numbered["kernels"][0]["name"]
    browser.wait(lambda: browser.texts("table.data tbody th") == [kernel], "the kernel that has numbers")
    browser.one("table.data tbody th button").click()
    browser.wait(lambda: browser.texts(".details-title") == [f"{kernel} kernel"], "the kernel selected")


def test_the_graph_is_colored_by_what_was_chosen(colored: Browser) -> None:
    options = colored.texts('[aria-label="Color by"] option')
    assert options == [
        "kind",
        "module",
        "module type",
        "dtype",
        "change",
        "time",
        "numeric difference",
        "largest value",
        "latency",
        "bytes",
        HOSTILE,
    ]
    assert fill(colored, "/relu") is None and "pointwise" in legend(colored)
    colored.run("document.querySelector('.theme select').value = 'light'")
    choose(colored, "latency")
    most, least, module = fill(colored, "/linear"), fill(colored, "/relu"), fill(colored, "/linear_1")
    assert len({most, least, module}) == 3 and None not in (most, least) and fill(colored, "/x") == ""
    assert legend(colored).startswith("2 ms8 ms") and "without" in legend(colored)
    label = colored.run("return document.querySelector('.scale').getAttribute('aria-label')")
    assert label == "latency, from 2 ms to 8 ms"
    choose(colored, "dtype")
    assert "float32" in legend(colored) and "bfloat16" in legend(colored)
    assert fill(colored, "/relu") not in ("", None)
    choose(colored, "module")
    assert "fc" in legend(colored) and fill(colored, "/linear") != fill(colored, "/relu")
    choose(colored, "time")
    assert fill(colored, "/linear"), "the loop that the node ended in was measured"
    choose(colored, "change")
    go_to(colored, "autocast")
    assert "added" in legend(colored) and "unchanged" in legend(colored)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_theme_has_its_scale(colored: Browser, theme: str) -> None:
    colored.run(
        "const s = document.querySelector('.theme select'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change', {bubbles: true}))",
        theme,
    )
    choose(colored, "latency")
    bright = [sum(int(str(fill(colored, key))[at : at + 2], 16) for at in (1, 3, 5)) for key in ("/relu", "/linear")]
    assert (bright[0] > bright[1]) == (theme == "light"), "the most stands out most from the ground"


def test_rules_color_what_they_find(colored: Browser, numbered: Data, tmp_path: Path) -> None:
    colored.one(".color-bar > button").click()
    for number, (query, color) in enumerate((("op:/^(relu|aten.relu)/", "#112233"), ("module:fc", "#445566")), 1):
        colored.run("[...document.querySelectorAll('.rules button')].at(-1).click()")
        colored.one(f'[aria-label="Words of rule {number}"]')
        colored.run(_WRITE, f"Words of rule {number}", query)
        colored.run(_WRITE, f"Color of rule {number}", color)
    colored.wait(lambda: fill(colored, "/linear") == "#445566", "the second rule")
    assert fill(colored, "/relu") in (None, "#112233") and "module:fc" in legend(colored)
    colored.run(_WRITE, "Words of rule 1", "linear")
    colored.wait(lambda: fill(colored, "/linear") == "#112233", "the first rule that fits")
    colored.one('[aria-label="Move rule 2 up"]').click()
    colored.wait(lambda: fill(colored, "/linear") == "#445566", "the other order")
    choose(colored, "dtype")
    assert fill(colored, "/linear") == "#445566" and fill(colored, "/relu") not in ("#445566", "", None)
    colored.wait(lambda: "rules=" in colored.driver.current_url and "color=dtype" in colored.driver.current_url, "it")
    saved = colored.driver.current_url
    colored.one('[aria-label="Remove rule 1"]').click()
    colored.wait(lambda: fill(colored, "/linear") == "#112233", "the rule that is left")
    # The browser remembers; an address says what it says.
    colored.driver.get("about:blank")
    colored.open(saved.partition("#")[0])
    assert (
        fill(colored, "/linear") == "#112233"
        and colored.run("return document.querySelector('select[aria-label=\"Color by\"]').value") == "dtype"
    )
    colored.driver.get("about:blank")
    colored.open(saved)
    assert fill(colored, "/linear") == "#445566"


@pytest.mark.parametrize(
    "said",
    [
        "color=numbers:nothing",
        "color=__proto__&rules=[]",
        "color=kind&rules=" + quote('[["op:relu","red"],["x"],null,["a","#12345"],{"query":"x"}]'),
        "color=kind&rules=" + quote("[" * 5000),
        "color=kind&rules=%7B",
        "rules=" + quote('[["op:relu","#123456"]]'),
    ],
)
def test_other_addresses_do_no_harm(numbered: Data, browser: Browser, tmp_path: Path, said: str) -> None:
    browser.driver.get("about:blank")
    browser.open(f"{export(numbered, tmp_path).as_uri()}#{said}")
    browser.run("localStorage.clear()")
    assert fill(browser, "/relu") is None and browser.texts(".color-bar > button") == ["Rules"]


def test_a_saved_picture_has_the_colors_and_the_legend(colored: Browser, tmp_path: Path) -> None:
    choose(colored, "latency")
    color = fill(colored, "/linear")
    colored.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    colored.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'SVG').click()")
    file = tmp_path / "Gate_captured.svg"
    colored.wait(lambda: file.exists() and file.stat().st_size, str(file))
    root = xml.etree.ElementTree.fromstring(file.read_bytes())
    assert any(element.get("fill") == color for element in root.iter())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-3:] == ["latency:", "2 ms", "8 ms"]


def test_two_graphs_have_the_same_colors(numbered: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(numbered | {"compare": numbered | {"title": "before"}}, tmp_path))
    browser.one("[data-tab=graphs]").click()
    ready = "return window.ingotSecondGraph !== undefined && !window.ingotSecondGraph.isPending()"
    browser.wait(lambda: browser.run(ready), "two graphs")
    choose(browser, "dtype")
    second = "return window.ingotSecondGraph.fill('/relu')"
    browser.wait(lambda: browser.run(second) == fill(browser, "/relu") != "", "the color of both")
    browser.run("localStorage.clear()")
