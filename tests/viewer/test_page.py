"""The page: nothing that a model or a file names can become markup or code, and nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import ViewError
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.page import embed_data, encode_json, export_page, read_asset, served_page, write_page
from ingot.viewer.summary import compiled_html, program_html
from ingot.viewer.view_data import ViewData

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "--></SCRIPT ><img src=x onerror=alert(1)>",
    "'\"`><svg/onload=alert(1)>",
    "&lt;script&gt;",
    "\u2028alert(1)\u2029",
    "\x00\x1b[31m\ud800",
    "]]>",
    "${alert(1)}",
    "</title><script>alert(1)</script>",
)


class _Page(HTMLParser):
    """The elements of a page, and the text of its scripts and its title."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open, []).append(data)


def _view(text: str) -> dict[str, Any]:
    """A view in which everything that a name or a line may be is this text."""
    view = ViewData(text, text, "program", "cpu")
    module = view.add_module([])
    place = view.add_place(module, text, 1)
    shape = view.add_type(text, text, [text])
    item = {"name": text, "kind": "operator", "target": text, "text": text, "inputs": [text], "type": shape}
    view.nodes.add(text, {**item, "place": place, "regions": [text]})
    view.notes.append(text)
    view.facts.append((text, text))
    view.add_stage(text, "graph", "passes", options={text: text}, detail=text, texts=[])
    view.lines.add([text], [0])
    return view.to_json()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_text(text: str) -> None:
    data = _view(text)
    page = export_page(data, "run();", "body {}")
    found = _Page(page)
    scripts = [attributes for tag, attributes in found.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "view-data"}, {}]
    assert [tag for tag, _ in found.elements] == _tags(_Page(export_page(_view("plain"), "run();", "body {}")))
    held, own = found.texts["script"]
    assert own == "run();"
    assert json.loads(held) == json.loads(json.dumps(data))
    for character in "<>&\u2028\u2029":
        assert character not in held
    page.encode("utf-8")


def _tags(page: _Page) -> list[str]:
    return [tag for tag, _ in page.elements]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_title_stays_text(text: str) -> None:
    found = _Page(served_page(text))
    assert [tag for tag, _ in found.elements].count("script") == 1
    assert not {"img", "svg"} & set(_tags(found))


def test_json_holds_what_it_was_given() -> None:
    value = {"a": list(HOSTILE), "<b>": [1, 2.5, None, True]}
    assert json.loads(encode_json(value)) == value
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_json({"a": float("nan")})


def test_large_data_is_compressed() -> None:
    data = {"title": "large", "lines": [f"</script>{number}" for number in range(100_000)]}
    found = _Page(embed_data(data))
    ((tag, attributes),) = found.elements
    assert tag == "script" and attributes["type"] == "text/plain" and attributes["data-encoding"] == "gzip+base64"
    (held,) = found.texts["script"]
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", held)
    assert json.loads(gzip.decompress(base64.b64decode(held))) == data
    assert len(held) < len(json.dumps(data)) / 2


def test_the_policy_of_an_exported_page_allows_its_own_script_alone() -> None:
    script = "run('ü');"
    found = _Page(export_page(_view("x"), script, "body {}"))
    policy = next(a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy) and "connect-src" not in str(policy) and "http" not in str(policy)
    tags = _tags(found)
    assert tags.index("meta") < tags.index("style") < tags.index("script")  # the policy holds from the beginning


def test_a_script_that_could_end_its_element_is_refused() -> None:
    for script in ("'</script>'", "'<!--'", "'</SCRIPT'"):
        with pytest.raises(AssertionError):
            export_page(_view("x"), script, "")


def test_an_exported_page_loads_nothing(tmp_path: Path) -> None:
    """Of the page that is part of this installation: no address of another host, in the script either."""
    try:
        script, style = read_asset("app.js"), read_asset("app.css")
    except ViewError:
        pytest.skip("the page is not built: run `make viewer`")
    write_page(tmp_path / "page.html", _view("plain"))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = _Page(text)
    for _, attributes in found.elements:
        assert not {"src", "href", "srcset", "action"} & attributes.keys()
    assert not re.search(r"url\(\s*['\"]?(?!data:|#)", style)
    assert "@import" not in style
    # Namespaces are names, not addresses.
    addresses = set(re.findall(r"(?:https?:)?//[\w-]+(?:\.[\w-]+)+[^\s\"'`)]*", script + style))
    assert {a for a in addresses if "www.w3.org" not in a and not a.startswith("//")} == set()


def test_an_installation_without_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ViewError, match=r"has no nothing\.js"):
        read_asset("nothing.js")


# ---------------------------------------------------------------------- programs with hostile names


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("</script><img src=x onerror=alert(1)>", nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = next(self.children())
        return inner(x).relu()  # </script><script>alert("a line of source")</script>


def test_a_module_with_a_hostile_name(plain_assets: None) -> None:
    program = ingot.capture(Named().eval(), (torch.ones(1, 2),))
    data = collect_program(program, ViewOptions()).to_json()
    assert any("</script>" in module["path"] for module in data["modules"])
    assert any("</script>" in text for text in data["lines"]["strings"])
    found = _Page(export_page(data))
    assert len(found.texts["script"]) == 2 and not {"img", "svg"} & set(_tags(found))
    held = found.texts["script"][0]
    assert json.loads(held)["modules"] == data["modules"]


def test_tables_for_notebooks_escape_what_they_show() -> None:
    model = Named().eval()
    program = ingot.capture(model, (torch.ones(1, 2),), dynamic_shapes={"x": {0: "batch"}})
    for text in (program_html(program), compiled_html(ingot.compile(program))):
        assert set(_tags(_Page(text))) <= {"table", "caption", "tr", "th", "td", "p", "code"}
    assert program._repr_html_() == program_html(program)


def test_a_view_in_a_notebook_is_a_frame_of_its_own(plain_assets: None) -> None:
    program = ingot.capture(Named().eval(), (torch.ones(1, 2),))
    shown = program.view()
    ((tag, attributes),) = _Page(shown._repr_html_()).elements
    assert tag == "iframe" and attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == export_page(shown.data | {"weights": []}), "no server has the values"
    assert repr(shown) == f"<ingot view of Named: {len(shown.data['stages'])} stages>"


def test_a_compiled_model_says_what_it_is(plain_assets: None) -> None:
    compiled = ingot.compile(nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval(), (torch.ones(1, 2),), threads=2)
    shown = repr(compiled)
    assert shown.startswith("<ingot compiled Sequential: (input: f32[1, 2]) → (f32[1, 3]); ")
    assert "2 threads, float32; 1 kernels, 1 launches, weights" in shown
    data = compiled.view().data
    assert [stage["kind"] for stage in data["stages"]] == ["graph", "loop_ir", "code"]
