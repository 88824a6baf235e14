from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from ingot.config import Settings


def test_an_empty_environment() -> None:
    settings = Settings.from_environment({})
    assert settings == Settings((), platformdirs.user_cache_path("ingot", appauthor=False), False)


def test_everything_given() -> None:
    given = {
        "INGOT_LOGS": "capture, passes,",
        "INGOT_CACHE_DIR": "/some/folder",
        "INGOT_DISABLE_CACHE": "1",
        "CC": " ccache gcc",
        "INGOT_CHECK": "1",
    }
    expected = Settings(("capture", "passes"), Path("/some/folder"), True, "ccache gcc", check=True)
    assert Settings.from_environment(given) == expected


@pytest.mark.parametrize(("text", "disabled"), [("", False), ("0", False), ("False", False), ("yes", True)])
def test_switches(text: str, disabled: bool) -> None:
    assert Settings.from_environment({"INGOT_DISABLE_CACHE": text}).disable_cache is disabled
    assert Settings.from_environment({"INGOT_CHECK": text}).check is disabled


def test_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_LOGS", "capture")
    assert Settings.from_environment().logs == ("capture",)
