from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

import ingot
from ingot.config import LOGS, Settings, configure_logging

SOURCE = Path(ingot.__file__).parents[1]
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "environment.md"


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


# ---------------------------------------------------------------------- one place that reads the environment


def reads_of_environment(tree: ast.Module) -> Iterator[int]:
    """Lines that read the environment; handing all of it to another process, {**os.environ, …}, is not reading."""
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    copied = {value for d in dicts for key, value in zip(d.keys, d.values, strict=True) if key is None}
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in ("environ", "environb", "getenv", "getenvb") and node not in copied:
            yield node.lineno


def test_the_environment_is_read_in_one_module_and_its_page_has_every_variable() -> None:
    files = [*SOURCE.joinpath("ingot").rglob("*.py"), *SOURCE.joinpath("ingot_runtime").rglob("*.py")]
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in files
        if "environ" in (text := path.read_text(encoding="utf-8")) or "getenv" in text
        if list(reads_of_environment(ast.parse(text)))
    }
    runtime = "ingot_runtime/config.py"  # which cannot import ingot
    assert readers == {"ingot/config.py", runtime}
    read = set(
        re.findall(r"""\bgiven\.get\("(\w+)\"""", SOURCE.joinpath("ingot", "config.py").read_text(encoding="utf-8"))
    )
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8").split("Other programs")[0], re.M))
    assert re.findall(r"""environ\.get\("(\w+)\"""", SOURCE.joinpath(runtime).read_text(encoding="utf-8")) == [
        "INGOT_CUDA_DRIVER"
    ]
    assert {*read, "INGOT_CUDA_DRIVER"} == documented and "INGOT_LOGS" in read
    named = {name for path in files for name in re.findall(r"\bINGOT_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert {name for name in named if name in read or name.startswith("INGOT_DISABLE")} <= documented


@pytest.mark.parametrize("text", ["os.environ['A']", "os.getenv('A')", "from os import environ\nenviron.get('A')"])
def test_a_read_of_the_environment_is_found(text: str) -> None:
    assert list(reads_of_environment(ast.parse(text)))
    assert not list(reads_of_environment(ast.parse("subprocess.run(x, env={**os.environ, 'A': 'b'})")))


# ---------------------------------------------------------------------- INGOT_LOGS


@pytest.fixture
def loggers() -> Iterator[dict[str, logging.Logger]]:
    """The loggers by name, put back afterwards."""
    found = {name: logging.getLogger(f"ingot.{name}") for name in LOGS}
    before = {name: (log.level, list(log.handlers), log.propagate) for name, log in found.items()}
    yield found
    for name, (level, handlers, propagate) in before.items():
        found[name].level, found[name].handlers, found[name].propagate = level, handlers, propagate


def configured(text: str) -> None:
    configure_logging(Settings.from_environment({"INGOT_LOGS": text}))


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {}),
        ("passes", {"passes": logging.INFO}),
        ("+passes,-cache", {"passes": logging.DEBUG, "cache": logging.ERROR}),
        ("all", dict.fromkeys(LOGS, logging.INFO)),
        ("all,-cache", dict.fromkeys(LOGS, logging.INFO) | {"cache": logging.ERROR}),
    ],
)
def test_logs_are_chosen_by_name(loggers: dict[str, logging.Logger], text: str, levels: dict[str, int]) -> None:
    configured(text)
    configured(text)
    assert {name: log.level for name, log in loggers.items() if log.handlers} == levels
    assert all(len(log.handlers) <= 1 for log in loggers.values()), "a message is written once"


def test_an_unknown_log_is_warned_of(loggers: dict[str, logging.Logger]) -> None:
    with pytest.warns(UserWarning, match=r"INGOT_LOGS names 'pases'.*known are passes, guards, .* and all"):
        configured("pases,cache")
    assert [name for name, log in loggers.items() if log.handlers] == ["cache"]


def test_logs_are_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \| ", PAGE.read_text(encoding="utf-8").split("## Logs")[1], re.M) == list(LOGS)


MODEL = """
import torch, ingot
class Model(torch.nn.Module):
    def forward(self, x):
        return x.exp() if x.shape[0] > 3 else x
for _ in range(2):
    print(ingot.compile(Model(), (torch.ones(5),), dynamic_shapes={"x": {0: "n"}})(torch.zeros(4)).tolist())
"""


def test_every_part_logs_to_stderr(tmp_path: Path) -> None:
    """In a process of its own, as a user sees it: stdout stays the program's."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    environment = {
        "PYTHONPATH": str(SOURCE),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "INGOT_LOGS": "passes,guards,lowering,schedule,codegen,cache",
        "INGOT_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "model.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0]\n" * 2
    lines = done.stderr.splitlines()
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert {line.partition(" ")[0] for line in first} == {f"[ingot.{name}]" for name in LOGS if name != "dynamo"}
    assert any(re.fullmatch(r"\[ingot.passes\] cse: changes 0, \d+\.\d ms, nodes 3 → 3", line) for line in first)
    (guard,) = [line for line in first if line.startswith("[ingot.guards]")]
    assert guard.startswith("[ingot.guards] n > 3, asked by the model at ") and "model.py:5: return x.exp()" in guard
    (miss,) = [line for line in first if line.startswith("[ingot.cache]")]
    assert miss.startswith("[ingot.cache] miss: ")
    timeless = [re.sub(r"\d+\.\d ms", "", line) for line in (*first, *second)]
    assert timeless[len(first) :] == [line.replace("miss", "hit") for line in timeless[: len(first)]]
