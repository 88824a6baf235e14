"""Markdown pages of the repository: their code blocks, links, paths and names, and a runner for the code.

A block after the line `<!-- not executed -->` is only shown. A ```text block after `<!-- output -->` is what the Python
block before it prints; `...` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib
import inspect
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import check_wording

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)+/?")
_NAME = re.compile(r"(ingot|ingot_runtime)(\.[A-Za-z_]\w*)+")
_CALL = re.compile(r"((?:ingot|ingot_runtime)(?:\.\w+)+)\(([^()]*)\)")
_MEMBER = re.compile(r"(\w+)\.([a-z_]\w*)(?:\([^`]*\))?")
# What the pages call an object of each class, in prose.
OBJECTS = {
    "program": "ingot.ir.program.Program",
    "compiled": "ingot.artifacts.compiled_model.CompiledModel",
    "loaded": "ingot.artifacts.loaded_model.LoadedModel",
    "deployed": "ingot_runtime.Model",
    "types": "ingot.analysis.shape_inference.Inferred",
    "report": "ingot.onnx.api.OnnxReport",
}
# Where the paths that pages name may begin.
BASES = (ROOT, ROOT / "src", ROOT / "src" / "ingot")
SHOWN, OUTPUT = "<!-- not executed -->", "<!-- output -->"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, the line it begins at, and the marker before it."""

    language: str
    text: str
    line: int
    marker: str


@dataclass(frozen=True, slots=True)
class Page:
    """A Markdown file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without fenced blocks and comments."""
        return re.sub(r"<!--.*?-->", "", _FENCE.sub("", self.text), flags=re.DOTALL)

    @property
    def blocks(self) -> list[Block]:
        text = self.text
        found = []
        for match in _FENCE.finditer(text):
            before = text[: match.start()].rstrip().rsplit("\n", 1)[-1].strip()
            indent = match[1]
            body = "\n".join(line.removeprefix(indent) for line in match[3].splitlines())
            marker = before if before in (SHOWN, OUTPUT) else ""
            found.append(Block(match[2], body, text.count("\n", 0, match.start(3)) + 1, marker))
        return found

    def run(self) -> dict[str, Any]:
        """Executes the page's Python blocks in order, in one namespace, which it returns. Compares shown output."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        printed = ""
        for block in self.blocks:
            if block.marker == OUTPUT:
                self._compare(block, printed)
            if block.language != "python" or block.marker == SHOWN:
                continue
            # As many lines before the code as on the page: tracebacks and captured source lines then point into it.
            code = compile("\n" * (block.line - 1) + block.text, str(self.path), "exec", dont_inherit=True)
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(code, namespace)
            printed = stream.getvalue()
        return namespace

    def _compare(self, block: Block, printed: str) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not doctest.OutputChecker().check_output(block.text + "\n", printed, flags):
            raise AssertionError(f"{self}:{block.line}: the page shows\n{block.text}\nbut the code printed\n{printed}")


# ---------------------------------------------------------------------- problems of a page


def slug(heading: str) -> str:
    """The anchor that Python-Markdown's toc extension gives a heading."""
    plain = re.sub(r"[^\w\s-]", "", re.sub(r"`|\*", "", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def anchors(path: Path) -> set[str]:
    found = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            named = re.search(r"\{ #([\w-]+) \}$", line)
            found.add(named[1] if named else slug(line.lstrip("# ")))
    return found


def broken_links(page: Page) -> list[str]:
    """Relative links to a file or a heading that is not there."""
    problems = []
    for target in _LINK.findall(page.prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = page.path.parent / name if name else page.path
        if not file.exists():
            problems.append(f"{page}: {target} does not exist")
        elif fragment and fragment not in anchors(file):
            problems.append(f"{page}: {target}: there is no such heading")
    return problems


def missing_paths(page: Page) -> list[str]:
    """Paths in code spans that are neither in the repository nor below src/ or src/ingot/."""
    problems = []
    for code in _CODE.findall(page.prose):
        for word in code.split():
            if not _PATH.fullmatch(word) or not _is_ours(word):
                continue
            if not any(list(base.glob(word.rstrip("/"))) for base in (page.path.parent, *BASES)):
                problems.append(f"{page}: `{word}` does not exist")
    return problems


def _is_ours(word: str) -> bool:
    """Whether a word with a slash is meant as a path of this repository: it ends like a file, or begins like ours."""
    tops = {entry.name for base in BASES for entry in base.iterdir() if entry.is_dir()}
    if word.startswith("native/"):  # a member of a .ingot file
        return False
    return bool(re.search(r"\.(py|h|c|md|toml|txt|json|yml)$", word)) or word.partition("/")[0] in tops


def unknown_names(page: Page) -> list[str]:
    """Dotted names of ingot and ingot_runtime, in prose and code, that do not exist."""
    words = {match[0] for match in _NAME.finditer("\n".join(_CODE.findall(page.prose)))}
    words |= {match[0] for block in page.blocks if block.language == "python" for match in _NAME.finditer(block.text)}
    return [f"{page}: {word} does not exist" for word in sorted(words) if not _resolves(word)]


def _resolves(word: str) -> bool:
    if re.search(r"\.(ingot|onnx|py|h)$", word):  # a file
        return True
    parts = word.split(".")
    value: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:index]))
            except ImportError:
                return False
    return True


def unknown_targets(page: Page) -> list[str]:
    """Targets of `make` that the Makefile does not have."""
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ {4}|^\$ )make ([a-z][a-z0-9-]*)", page.text, re.MULTILINE))
    return [f"{page}: `make {name}` does not exist" for name in sorted(named - known)]


def unknown_keywords(page: Page) -> list[str]:
    """Keyword arguments of public functions, in prose, that the function does not take."""
    problems = []
    for code in _CODE.findall(page.prose):
        for name, arguments in _CALL.findall(code):
            if not _resolves(name):
                continue  # unknown_names() says so
            known = inspect.signature(_lookup(name)).parameters
            for keyword in re.findall(r"(?:^|, *)(\w+)=", arguments):
                if keyword not in known:
                    problems.append(f"{page}: `{code}`: {name} has no argument {keyword}")
    return problems


def unknown_members(page: Page) -> list[str]:
    """Attributes of programs, compiled models and so on, in prose, that their classes do not have."""
    problems = []
    for code in _CODE.findall(page.prose):
        match = _MEMBER.fullmatch(code)
        if match and match[1] in OBJECTS and not _has_member(_lookup(OBJECTS[match[1]]), match[2]):
            problems.append(f"{page}: `{code}`: {OBJECTS[match[1]]} has no {match[2]}")
    return problems


def _has_member(cls: type, name: str) -> bool:
    if any(name in vars(base) for base in cls.__mro__):
        return True
    # Set by __init__, or a field of a dataclass with slots.
    return any(
        re.search(rf"\bself\.{name}\b|^    {name}: ", inspect.getsource(base), re.M) for base in cls.__mro__[:-1]
    )


def _lookup(word: str) -> Any:
    """The value of a dotted name that resolves. A function may hide the module that it is defined in."""
    parts = word.split(".")
    for length in range(1, len(parts)):
        with contextlib.suppress(ImportError, AttributeError):
            return functools.reduce(getattr, parts[length:], importlib.import_module(".".join(parts[:length])))
    return importlib.import_module(word)


# ---------------------------------------------------------------------- commands


def _shell_lines(page: Page) -> Iterator[str]:
    """Code spans, indented lines, and lines of fenced blocks that have no language, without their comments."""
    yield from _CODE.findall(page.prose)
    for line in page.prose.splitlines():
        if line.startswith("    "):
            yield line.strip().partition("  #")[0]
    for block in page.blocks:
        if block.language in ("", "sh", "bash", "text"):
            yield from (line.strip().removeprefix("$ ").partition("  #")[0] for line in block.text.splitlines())


@functools.cache
def list_options(command: str) -> dict[str, set[str]]:
    """The options of each subcommand; those of the command itself under the empty name."""
    if command == "ingot":
        group = importlib.import_module("typer.main").get_command(importlib.import_module("ingot.cli").app)
        members = {"": group, **group.commands}
        found = {name: {o for p in c.params for o in (*p.opts, *p.secondary_opts)} for name, c in members.items()}
    else:
        parser = importlib.import_module("ingot_runtime.__main__")._parser()
        members = {"": parser, **parser._subparsers._group_actions[0].choices}
        found = {name: set(p._option_string_actions) for name, p in members.items()}
    return {name: options | {"-h", "--help"} for name, options in found.items()}


def unknown_commands(page: Page) -> list[str]:
    """Subcommands and options of `ingot` and `python -m ingot_runtime` that do not exist."""
    problems = []
    tables = {"ingot": list_options("ingot"), "python -m ingot_runtime": list_options("ingot_runtime")}
    every = {option for table in tables.values() for options in table.values() for option in options}
    for line in _shell_lines(page):
        if re.match(r"--\w", line) and line.split()[0] not in every:
            problems.append(f"{page}: there is no option {line.split()[0]}")
        for command, table in tables.items():
            if line != command and not line.startswith(command + " "):
                continue
            words = line.removeprefix(command).split()
            named = words[0].split("|") if words and not words[0].startswith("-") else [""]
            if missing := [name for name in named if name not in table]:
                problems.append(f"{page}: `{line}`: there is no command {missing[0]}")
                continue
            given = {word.partition("=")[0] for word in words if re.match(r"-{1,2}[a-z]", word)}
            for option in sorted(given - set.intersection(*(table[name] for name in named))):
                problems.append(f"{page}: `{line}`: there is no option {option}")
    return problems


def missing_scripts(page: Page) -> list[str]:
    """Scripts and modules that the page runs with `python` and that are not in the repository."""
    problems = []
    for line in _shell_lines(page):
        for module, script in re.findall(r"\bpython (?:-m ((?:tests|benchmarks|tools)[\w.]*)|([\w/]+\.py))", line):
            path = ROOT / (script or module.replace(".", "/"))
            if not path.exists() and not path.with_suffix(".py").exists():
                problems.append(f"{page}: `{line}`: {script or module} does not exist")
    return problems


# ---------------------------------------------------------------------- wording


def private_words(page: Page) -> list[str]:
    """Words that readers do not know from the documents of other compilers."""
    return [f"{page}: {problem}" for problem in _find_private_words(page.prose)]


def _find_private_words(text: str) -> list[str]:
    return [remark for _, remark in check_wording.find_in(text, check_wording.PLAIN)]


# ---------------------------------------------------------------------- docstrings


def docstrings(page: Page) -> dict[str, str]:
    """The docstrings that an API page shows, by name: those of its `:::` lines and of their public members."""
    found = {}
    for name in re.findall(r"^::: (\S+)$", page.text, re.M):
        value = _lookup(name)
        found[name] = inspect.getdoc(value) or ""
        names = value.__all__ if hasattr(value, "__all__") else vars(value) if inspect.isclass(value) else ()
        for member in (member for member in names if not member.startswith("_")):
            documented = getattr(value, member)
            if not inspect.ismemberdescriptor(documented):  # a field: the docstring of its class has it
                found[f"{name}.{member}"] = inspect.getdoc(documented) or ""
    return found


def bad_docstrings(page: Page) -> list[str]:
    """Public names without a docstring, and private words in docstrings."""
    problems = []
    for name, text in docstrings(page).items():
        problems += [
            f"{page}: {name}: {problem}" for problem in _find_private_words(text) or ["no docstring"] * (not text)
        ]
    return problems
