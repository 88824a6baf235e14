"""Chromium for the tests of the page: found where Debian's packages put it, without a profile and without a network."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ingot.viewer.page import export_page

SECONDS = 60  # how long a page may take before a test fails: far more than it needs, for busy machines
Data = dict[str, Any]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

# What a click on a stage takes until the graph of that stage is laid out and drawn, in milliseconds.
_STEP = """
const [label, done] = arguments;
const button = document.querySelector(`[aria-label="${label}"]`);
const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve()));
(async () => {
  const start = performance.now();
  button.click();
  await frame();
  while (window.ingotGraph && window.ingotGraph.isPending()) await frame();
  await frame();
  done(performance.now() - start);
})();
"""


def missing() -> str | None:
    """Why no browser can be started here, or None."""
    if not any(shutil.which(name) for name in CHROMIUM):
        return "no Chromium: install Debian's packages chromium and chromium-driver"
    if shutil.which("chromedriver") is None:
        return "no chromedriver: install Debian's package chromium-driver"
    return None if find_spec("selenium") else "selenium is not installed: it is in requirements-dev.txt"


needs_browser = pytest.mark.skipif(missing() is not None, reason=missing() or "")


class Browser:
    """A window of Chromium with what the tests ask it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Opens a page and waits until it shows a view, or says why it cannot."""
        self.driver.get(address)
        self.wait(lambda: self.run("return document.querySelector('#app[data-ready], .failure') !== null"))
        if self.run("return document.querySelector('.graph-canvas') !== null"):
            self.wait(lambda: self.run("return performance.getEntriesByName('ingot-first-graph').length > 0"))

    def open_file(self, page: Path) -> None:
        self.open(page.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, holds: Callable[[], Any], what: str = "the page") -> Any:
        """What `holds` returns, once it is true."""
        until = time.monotonic() + SECONDS
        while not (found := holds()):
            assert time.monotonic() < until, f"{what} is not there after {SECONDS} seconds"
            time.sleep(0.02)
        return found

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.wait(lambda: next(iter(self.all(selector)), None), selector)

    def texts(self, selector: str) -> list[str]:
        """The text of every such element, in view or not."""
        found = self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)
        return [str(text) for text in found]

    def step(self, label: str = "Next stage") -> float:
        """Goes to another stage; how many milliseconds it took until everything was drawn."""
        return float(self.driver.execute_async_script(_STEP, label))

    def graph(self, call: str) -> Any:
        """What the page tells tests about its graph."""
        return self.run(f"return window.ingotGraph.{call}")

    def settle(self) -> None:
        """Waits until the graph is laid out and drawn."""
        self.wait(lambda: not self.graph("isPending()"), "the graph")
        self.driver.execute_async_script(
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def click_graph(self, key: str, *, across: int = 0, twice: bool = False, second: bool = False) -> None:
        """Clicks a cell of the graph, `across` pixels right of its middle."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        probe = "ingotSecondGraph" if second else "ingotGraph"
        place = self.wait(lambda: self.run(f"return window.{probe}.position({key!r})"), key)
        x, y = int(place[0]) + across, int(place[1])
        builder = ActionBuilder(self.driver)
        builder.pointer_action.move_to_location(x, y)
        builder.pointer_action.click()
        builder.perform()
        if twice:
            ActionChains(self.driver).double_click().perform()

    def keys(self, *keys: str) -> None:
        """Presses keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def marks(self) -> dict[str, float]:
        """When the page reached its marks and painted something, in milliseconds since it was asked for."""
        found = self.run(
            "return [...performance.getEntriesByType('mark'), ...performance.getEntriesByType('paint')]"
            ".map((entry) => [entry.name, entry.startTime])"
        )
        return {str(name): float(at) for name, at in reversed(found)}

    def complaints(self) -> list[str]:
        """What the console says since the last call: errors, and violations of the content security policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


def export(data: Data, folder: Path) -> Path:
    """Writes the page of a view."""
    page = folder / "page.html"
    page.write_text(export_page(data), encoding="utf-8")
    return page


def go_to(browser: Browser, name: str) -> None:
    """Clicks the last stage with a name."""
    found = [button for button in browser.all(".stage") if button.get_property("textContent").startswith(name)]
    browser.run("arguments[0].click()", found[-1])
    browser.settle()


@contextmanager
def chromium(width: int = 1600, height: int = 1000) -> Iterator[Browser]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary = next(found for name in CHROMIUM if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for argument in (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            f"--disable-component-update --disable-sync --window-size={width},{height} --user-data-dir={profile}"
        ).split():
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        driver.set_script_timeout(SECONDS)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
