"""A page without its script, and pages in a browser that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ingot
from ingot.viewer import page, server
from ingot.viewer.collection import ViewOptions, collect_program
from tests.viewer.browser import Browser, Data, chromium, export
from tests.viewer.models import Deep, Gate


@pytest.fixture
def plain_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests check does not depend on the script."""

    def read(name: str) -> str:
        return {"app.js": "console.log('page');", "app.css": "body { margin: 0; }"}[name]

    monkeypatch.setattr(page, "read_asset", read)
    monkeypatch.setattr(server, "read_asset", read)


@pytest.fixture(scope="session")
def gate() -> Data:
    program = ingot.capture(Gate().eval(), (torch.ones(5, 4),), dynamic_shapes={"x": {0: "batch"}})
    return collect_program(program, ViewOptions(numerics=True, profile=True), reference="models.py:gate").to_json()


@pytest.fixture(scope="session")
def deep() -> Data:
    return collect_program(ingot.capture(Deep(6).eval(), (torch.ones(4, 16),)), ViewOptions()).to_json()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def quiet(browser: Browser) -> Iterator[None]:
    """No test leaves an error in the console, or something that the content security policy stopped."""
    browser.complaints()
    yield
    assert browser.complaints() == []


@pytest.fixture
def gate_page(gate: Data, browser: Browser, tmp_path: Path) -> Browser:
    browser.open_file(export(gate, tmp_path))
    return browser
