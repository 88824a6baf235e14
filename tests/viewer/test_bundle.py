"""The built page: small, alone, and what its sources give."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "viewer"
ASSETS = ROOT / "src" / "ingot" / "viewer" / "assets"

needs_node = pytest.mark.skipif(
    shutil.which("npm") is None or not (SOURCES / "node_modules").is_dir(),
    reason="no Node.js, or `make viewer` has not installed the packages yet",
)


def test_the_bundle_is_small() -> None:
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) < 300_000


def test_the_bundle_asks_for_nothing() -> None:
    script = (ASSETS / "app.js").read_text(encoding="utf-8")
    style = (ASSETS / "app.css").read_text(encoding="utf-8")
    assert not re.search(r"</script|</style|<!--", script + style, re.IGNORECASE)
    assert not re.search(r"@import|url\((?!data:)", style)
    # The names of XML languages look like addresses.
    addresses = {found for found in re.findall(r"https?://[\w./-]+", script) if "www.w3.org" not in found}
    assert addresses == set()
    assert not re.search(r"\beval\(|new Function\(|document\.write", script)


def test_the_sources_write_no_markup() -> None:
    """All strings of the data become text: Preact's way around that, and the browser's, are not used."""
    files = list((SOURCES / "src").rglob("*.ts*"))
    assert len(files) > 30
    for file in files:
        found = re.search(r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML", file.read_text("utf-8"))
        assert found is None, f"{file.relative_to(SOURCES)}: {found}"


def test_every_package_of_the_bundle_is_named_with_its_licence() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    wanted = json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))["dependencies"]
    named = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    for package, version in wanted.items():
        assert lock[f"node_modules/{package}"]["version"] == version, f"{package} is pinned"
        assert f"{package} {version} (MIT)" in named


@needs_node
def test_the_bundle_is_built_from_its_sources(tmp_path: Path) -> None:
    command = ["npm", "--silent", "run", "bundle", "--", "--outDir", str(tmp_path), "--logLevel", "error"]
    subprocess.run(command, cwd=SOURCES, check=True)
    for file in sorted(tmp_path.iterdir()):
        assert file.read_bytes() == (ASSETS / file.name).read_bytes(), f"{file.name} is older: run `make viewer`"


@needs_node
def test_the_logic_of_the_page() -> None:
    """vitest: layout, boxes, links, search, diffs."""
    done = subprocess.run(["npm", "--silent", "test"], cwd=SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
