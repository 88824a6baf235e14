"""The scripts of `make check`: what they report."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["src/ingot/passes", "tests/e2e", "benchmarks", "examples", "runtime", "tools"])
def test_layout_limits(name: str, tmp_path: Path) -> None:
    layout = load("check_layout")
    folder = tmp_path / name
    folder.mkdir(parents=True)
    for number in range(layout.MODULES):
        (folder / f"m{number:02}.py").write_text("x = 1\n" * layout.LINES)
    assert list(layout.find(tmp_path)) == []
    (folder / "m00.py").write_text("x = 1\n" * (layout.LINES + 1))
    (folder / "last.py").write_text("")
    assert list(layout.find(tmp_path)) == [
        f"{name}/m00.py: 501 lines, and at most 500 are allowed",
        f"{name}: 21 modules, and at most 20 are allowed",
    ]


def test_layout_covers_every_folder_with_code() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    with_code = {path.name for path in folders if any(path.rglob("*.py"))}
    assert with_code - {"build", "dist"} == set(load("check_layout").SOURCES)


def test_names_that_are_not_verbs() -> None:
    names = load("check_names")
    assert all(map(names.is_participle, ("_told", "narrowed", "taken_in", "made_here")))
    assert not any(map(names.is_participle, ("feed", "mutated_tensors", "searchsorted", "narrow")))
    assert all(map(names.is_prepositional, ("of", "in_blocks", "_without_dead")))
    assert not any(map(names.is_prepositional, ("from_numpy", "to_exported", "insert")))


def test_private_words(tmp_path: Path) -> None:
    wording = load("check_wording")
    folder = tmp_path / "src" / "ingot"
    folder.mkdir(parents=True)
    (folder / "good.py").write_text("# There is no rule, and it is no longer used: inside the run's folder.\n")
    assert list(wording.find(tmp_path)) == []
    (folder / "bad.h").write_text("/* a size\n   that only the run knows, and which is no dim */\n")
    (folder / "bad.py").write_text("told = 'It hangs on whole numbers'\n")
    assert [line.partition(": write")[0] for line in wording.find(tmp_path)] == [
        "src/ingot/bad.h:2: 'is no'",
        "src/ingot/bad.h:2: 'only the run'",
        "src/ingot/bad.py:1: 'hangs on'",
        "src/ingot/bad.py:1: 'told'",
        "src/ingot/bad.py:1: 'whole numbers'",
    ]
