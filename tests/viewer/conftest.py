"""A page without its script: what these tests check does not depend on it."""

from __future__ import annotations

import pytest

from ingot.viewer import page, server


@pytest.fixture
def plain_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> str:
        return {"app.js": "console.log('page');", "app.css": "body { margin: 0; }"}[name]

    monkeypatch.setattr(page, "read_asset", read)
    monkeypatch.setattr(server, "read_asset", read)
