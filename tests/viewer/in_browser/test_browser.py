"""The page in a real browser: exported and served, with the pointer and with the keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot.viewer.page import export_page
from ingot.viewer.server import PageServer, files_of
from tests.viewer.browser import Browser, Data, export, go_to, needs_browser

pytestmark = [needs_browser, pytest.mark.usefixtures("quiet")]

# What a name would do if a page took it for markup or for code.
HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=2</script>",
    "javascript:window.hacked=3",
    "\"'><svg onload=window.hacked=4>",
    "<!--<script>",
    "__proto__",
    "constructor",
    "${window.hacked=5}",
    "\u202egnirts",
)
ARROW_RIGHT, ARROW_LEFT, ARROW_DOWN, ENTER, ESCAPE = "\ue014", "\ue012", "\ue015", "\ue007", "\ue00c"


def search(browser: Browser, query: str) -> list[str]:
    """The names of what is found."""
    field = browser.one("input[type=search]")
    field.clear()
    field.send_keys(query)
    browser.wait(lambda: browser.texts(".search-count") not in ([], [""]), "a count")
    return browser.texts(".outline-row .outline-name")


def linked_lines(browser: Browser, pane: str) -> list[str]:
    return browser.texts(f".pane-{pane} .line.linked .code")


def test_a_page_loads_from_a_file(gate: Data, gate_page: Browser) -> None:
    assert gate_page.driver.title.startswith(gate["title"])
    assert len(gate_page.all(".stage")) == len(gate["stages"])
    assert gate_page.graph("inWorker"), "the layout is computed in a worker, from a file too"
    assert gate_page.graph("drawn.cells") > 5
    panes = gate_page.run("return [...document.querySelectorAll('.pane')].map((pane) => pane.dataset.pane)")
    assert panes == ["outline", "details", "graph", "source", "program", "loop_ir", "code"]
    assert gate_page.texts(".pane-program .line .code")[0].startswith("# Gate")


def test_a_page_loads_from_the_server(gate: Data, browser: Browser) -> None:
    with PageServer(files_of(gate)) as server:
        server.start()
        browser.open(server.url)
        assert browser.graph("inWorker")
        assert len(browser.all(".stage")) == len(gate["stages"])
        asked = browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert {address.removeprefix(server.url) for address in asked if not address.startswith("blob:")} == {
            "app.js",
            "app.css",
            "view.json",
        }


def test_a_page_works_in_the_frame_of_a_notebook(gate: Data, browser: Browser, tmp_path: Path) -> None:
    """Its own origin is opaque there: no storage, and nothing of the page around it."""
    import html

    page = tmp_path / "notebook.html"
    frame = f'<iframe srcdoc="{html.escape(export_page(gate))}" sandbox="allow-scripts" width="1200" height="800">'
    page.write_text(f'<!doctype html><meta charset="utf-8">{frame}</iframe>', encoding="utf-8")
    browser.driver.get(page.as_uri())
    browser.driver.switch_to.frame(browser.one("iframe"))
    try:
        browser.wait(lambda: browser.run("return performance.getEntriesByName('ingot-first-graph').length > 0"))
        assert browser.graph("drawn.cells") > 5
    finally:
        browser.driver.switch_to.default_content()


def test_steps_through_all_stages(gate: Data, gate_page: Browser) -> None:
    names = []
    for place, stage in enumerate(gate["stages"]):
        if place:
            gate_page.step()
        names.append(gate_page.texts(".fact-name dd")[0])
        current = gate_page.texts(".stage[aria-current=step] .stage-name")
        assert current == [stage["name"]]
    assert names == [stage["name"] for stage in gate["stages"]]
    assert not gate_page.one('[aria-label="Next stage"]').is_enabled()
    gate_page.step("Previous stage")
    assert gate_page.texts(".fact-name dd") == [names[-2]]


def test_a_step_shows_what_it_changed(gate: Data, gate_page: Browser) -> None:
    stage = next(stage for stage in gate["stages"] if stage["name"] == "autocast")
    go_to(gate_page, "autocast")
    facts = " ".join(gate_page.texts(".stage-facts > div"))
    assert f"changes{stage['changes']}" in facts and "largest difference0, bit for bit" in facts
    added = gate_page.texts(".pane-program .line.added .code")
    removed = gate_page.texts(".pane-program .line.removed .code")
    assert added and any("autocast" in line for line in removed)
    signs = gate_page.texts(".outline-row .added-text")
    assert any(sign.startswith("+") for sign in signs)
    gate_page.run(
        "[...document.querySelectorAll('.pane-program button')].find((b) => b.textContent === 'Text').click()"
    )
    gate_page.wait(lambda: not gate_page.all(".pane-program .line.added"), "the plain text")


def test_arrow_keys_step_and_the_graph_has_keys_of_its_own(gate: Data, gate_page: Browser) -> None:
    gate_page.one(".stage[aria-current=step]").click()
    gate_page.keys(ARROW_RIGHT, ARROW_RIGHT, ARROW_LEFT)
    gate_page.wait(lambda: gate_page.texts(".fact-name dd") == [gate["stages"][1]["name"]], "the second stage")
    gate_page.run("document.querySelector('.graph-canvas').focus()")
    before = gate_page.graph("camera().scale")
    gate_page.keys("+")
    assert gate_page.graph("camera().scale") > before
    gate_page.keys(ARROW_DOWN)
    first = gate_page.wait(lambda: gate_page.texts(".details-title"), "the first node")[0]
    gate_page.keys(ARROW_DOWN)
    gate_page.wait(lambda: gate_page.texts(".details-title") not in ([], [first]), "its user")
    gate_page.keys(ESCAPE)
    gate_page.wait(lambda: gate_page.texts(".pane-details h2") == ["About"], "no selection")


def test_boxes_open_and_close(deep: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(deep, tmp_path))
    box = next(key for key in browser.graph("keys()") if key.startswith("|"))
    browser.run("document.querySelector('.pane-graph .pane-controls button').click()")  # Collapse
    browser.settle()
    closed = browser.graph("keys()")
    browser.click_graph(box, twice=True)
    browser.settle()
    opened = browser.graph("keys()")
    assert len(opened) > len(closed) and set(closed) <= set(opened)
    row = browser.one(f'.outline-row[data-key="{box}"]')
    assert row.get_attribute("aria-expanded") == "true"
    browser.run("arguments[0].querySelector('.twisty').click()", row)
    browser.settle()
    assert browser.graph("keys()") == closed
    browser.run("document.querySelector('.outline').focus()")
    row.click()
    browser.keys(ARROW_RIGHT)
    browser.wait(lambda: len(browser.graph("keys()")) > len(closed), "the open box")


def test_a_graph_without_boxes_of_modules(deep: Data, browser: Browser, tmp_path: Path) -> None:
    browser.open_file(export(deep, tmp_path))

    def switch() -> None:
        labels = "[...document.querySelectorAll('.pane-graph label')]"
        browser.run(f"{labels}.find((label) => label.textContent === 'Modules').click()")
        browser.settle()

    assert any(key.startswith("|") for key in browser.graph("keys()"))
    switch()
    assert browser.graph("keys()") and not any(key.startswith("|") for key in browser.graph("keys()"))
    browser.wait(lambda: "modules=no" in browser.driver.current_url, "the switch in the address")
    switch()
    assert any(key.startswith("|") for key in browser.graph("keys()"))


def test_search_finds_by_operator_module_line_and_shape(gate: Data, gate_page: Browser) -> None:
    assert search(gate_page, "op:relu") == ["relu"]
    assert search(gate_page, "module:fc") == ["linear"]
    assert "softmax" in " ".join(search(gate_page, "shape:3] softmax"))
    relu = next(node for node in gate["nodes"] if node["name"] == "relu")
    line = gate["places"][relu["place"]][2]
    assert {"linear", "relu"} <= set(search(gate_page, f"line:models.py:{line}"))
    assert search(gate_page, "no such node") == []
    search(gate_page, "op:relu")
    gate_page.keys(ENTER)
    gate_page.wait(lambda: gate_page.texts(".details-title") == ["relu operator"], "the node")


def test_selecting_in_one_pane_selects_in_all(gate: Data, gate_page: Browser) -> None:
    gate_page.click_graph("/relu")
    gate_page.wait(lambda: linked_lines(gate_page, "program"), "the selection")
    assert any("aten.relu" in line for line in linked_lines(gate_page, "program"))
    assert any("self.fc(x).relu()" in line for line in linked_lines(gate_page, "source"))
    assert linked_lines(gate_page, "loop_ir") and linked_lines(gate_page, "code")
    details = " ".join(gate_page.texts(".pane-details .field"))
    assert "f32[batch, 8]" in details and "models.py" in details and "kernel" in details and "linear" in details

    # From the code back: the kernel, its loops, its nodes and lines.
    gate_page.run("document.querySelector('.pane-code .line.linked').click()")
    gate_page.wait(lambda: "kernel" in gate_page.texts(".details-title")[0], "the kernel")
    assert any("self.fc(x).relu()" in line for line in linked_lines(gate_page, "source"))
    assert linked_lines(gate_page, "program")

    # From the loop IR, and from the source.
    gate_page.run("document.querySelector('.pane-loop_ir .line.can-select').click()")
    gate_page.wait(lambda: "loop" in gate_page.texts(".details-title")[0], "the loop")
    assert linked_lines(gate_page, "program") and linked_lines(gate_page, "code")
    gate_page.run("document.querySelector('.pane-source .line.has-nodes').click()")
    gate_page.wait(lambda: "line" in gate_page.texts(".details-title")[0], "the line")
    assert len(linked_lines(gate_page, "program")) >= 1


def test_a_selection_follows_the_stages(gate_page: Browser) -> None:
    search(gate_page, "op:relu")
    gate_page.keys(ENTER)
    gate_page.wait(lambda: gate_page.texts(".details-title") == ["relu operator"], "the node")
    for name in ("autocast", "decompose", "lower", "model.c"):
        go_to(gate_page, name)
        assert any("relu" in line for line in linked_lines(gate_page, "program")), name
        assert linked_lines(gate_page, "code"), name


def test_themes_follow_the_system_and_a_switch(gate_page: Browser) -> None:
    def color() -> str:
        return str(gate_page.run("return getComputedStyle(document.body).backgroundColor"))

    def choose(theme: str) -> None:
        gate_page.run(
            "const s = document.querySelector('select[aria-label=Theme]'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change', {bubbles: true}))",
            theme,
        )

    choose("light")
    light = color()
    choose("dark")
    gate_page.wait(lambda: color() != light, "dark colors")
    dark = color()
    choose("system")
    for scheme, expected in (("dark", dark), ("light", light)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        gate_page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        gate_page.wait(lambda expected=expected: color() == expected, f"the system's {scheme} colors")
    gate_page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# Everything that can be operated has a name.
_UNNAMED = """
const named = (e) => e.closest("label") !== null
  || (e.getAttribute("aria-label") || e.textContent || e.title || "").trim() !== "";
const operated = "button, select, input, canvas, svg[role], [role=tree], [role=separator], [tabindex='0']";
return [...document.querySelectorAll(operated)].filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 120));
"""
# Text stands out from what is behind it as WCAG asks for: 4.5 to 1.
_FAINT = """
const parse = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
const linear = (c) => c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const color = parse(getComputedStyle(e).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const hasText = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const found = new Set();
for (const e of document.querySelectorAll("body *")) {
  if (e.closest("svg, :disabled, .removed .code") || !hasText(e)) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) found.add(`${e.className || e.tagName}: ${contrast.toFixed(2)}`);
}
return [...found];
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_has_a_name_and_contrast(gate: Data, gate_page: Browser, theme: str) -> None:
    gate_page.run("document.documentElement.dataset.theme = arguments[0]", theme)
    gate_page.click_graph("/relu")
    gate_page.wait(lambda: linked_lines(gate_page, "program"), "the selection")
    for tab in ("program", "profile", "memory", "dims", "about"):
        gate_page.one(f"[data-tab={tab}]").click()
        if tab == "program":
            go_to(gate_page, "autocast")
        assert gate_page.run(_UNNAMED) == [], tab
        assert gate_page.run(_FAINT) == [], tab
    assert gate_page.run("return document.documentElement.lang") == "en"


def poison(value: Any, name: str = "") -> Any:
    """The same data with text of an attacker in every string that a model or a file can bring."""
    if isinstance(value, dict):
        return {key: poison(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item, name) for item in value]
    if isinstance(value, str) and name not in (
        "kind",
        "group",
        "language",
        "origin",
        "inputs",
        "name",
        "path",
        "parent",
    ):
        return value + HOSTILE[len(value) % len(HOSTILE)]
    return value


def test_hostile_names_are_text(gate: Data, browser: Browser, tmp_path: Path) -> None:
    data = poison({key: value for key, value in gate.items() if key not in ("kind", "schema")})
    # Names are keys as well: changed everywhere alike.
    renamed = {node["name"]: f"{node['name']}{HOSTILE[i % len(HOSTILE)]}" for i, node in enumerate(gate["nodes"])}
    for node in data["nodes"]:
        node["name"] = renamed[node["name"]]
        node["inputs"] = [renamed[name] for name in node["inputs"]]
    for stage in data["stages"]:
        stage["name"] += HOSTILE[0]
        for graph in stage["graphs"]:
            graph["caller"] = renamed.get(graph["caller"])
    for file in data["files"]:
        file["name"] += HOSTILE[1]
    for dim in data["dims"]:
        dim["name"] = HOSTILE[0]
    for kernel in data["kernels"]:
        kernel["name"] += HOSTILE[3]
    page = export({"schema": gate["schema"], "kind": gate["kind"], **data}, tmp_path)
    browser.open_file(page)
    shown = browser.run("return document.body.textContent")
    assert HOSTILE[0] in shown
    for _ in range(len(data["stages"]) - 1):
        browser.step()
    browser.run("document.querySelector('.outline-row').click()")
    browser.run("document.querySelector('.pane-source .line.has-nodes').click()")
    search(browser, "<img")
    for tab in ("profile", "memory", "dims", "about"):
        browser.one(f"[data-tab={tab}]").click()
        browser.wait(lambda: browser.all(".panel"), tab)
    assert browser.run("return window.hacked") is None
    assert (
        browser.run("return document.querySelectorAll('img, iframe, #app script, [onerror], [onload], a').length") == 0
    )


@pytest.mark.parametrize("kind", ["graph", "loop_ir", "code", None])
def test_views_of_a_part_are_shown(gate: Data, browser: Browser, tmp_path: Path, kind: str | None) -> None:
    """A compiled file without its program has code only, an ONNX file graphs only; a note says why."""
    stages = [stage for stage in gate["stages"] if stage["kind"] == kind]
    note = "the file holds no program"
    data = gate | {"stages": stages, "profile": None, "memory": None, "notes": [note]}
    browser.open_file(export(data, tmp_path))
    assert len(browser.all(".stage")) == len(stages)
    for _ in stages[1:]:
        browser.step()
    panes = browser.run("return [...document.querySelectorAll('.pane')].map((pane) => pane.dataset.pane)")
    assert ("graph" in panes) == (kind == "graph") and ("code" in panes) == (kind == "code")
    if kind == "code":
        browser.run("document.querySelector('.pane-code .line.can-select').click()")
        browser.wait(lambda: linked_lines(browser, "code"), "the kernel")
        browser.run("document.querySelector('.pane-source .line.has-nodes').click()")
        browser.wait(lambda: "line" in browser.texts(".details-title")[0], "the line")
        assert linked_lines(browser, "code")
    browser.one(".notes-button").click()
    browser.wait(lambda: note in browser.texts(".notes li"), "the note")


def test_broken_data_is_said(browser: Browser, tmp_path: Path, gate: Data) -> None:
    browser.open_file(export(gate | {"schema": 99}, tmp_path))
    assert "schema 99" in browser.texts(".failure")[0]
