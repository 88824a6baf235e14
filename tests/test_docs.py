"""What README and docs/ say is so: their code runs, and links, paths, names and figures are right."""

from __future__ import annotations

import ast
import inspect
import json
import re
import warnings
from pathlib import Path

import pytest

import ingot
from benchmarks.support import readme_table
from tests.support import doc_pages
from tests.support.doc_pages import ROOT, Page
from tests.test_walkthroughs import WALKTHROUGHS
from tools import cli_reference, external_resources

DOCS = ROOT / "docs"
REPORTS = sorted(set((DOCS / "reports").glob("*.md")) - {DOCS / "reports" / "index.md"})
WRITTEN = [  # by people
    *(
        Page(ROOT / name)
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "runtime/README.md")
    ),
    *(Page(path) for path in sorted(DOCS.rglob("*.md")) if path not in REPORTS),
]
EXECUTED = [
    page
    for page in WRITTEN
    if any(block.language == "python" for block in page.blocks) and page.path not in WALKTHROUGHS.values()
]
CHECKS = (
    doc_pages.broken_links,
    doc_pages.missing_paths,
    doc_pages.missing_scripts,
    doc_pages.unknown_commands,
    doc_pages.unknown_keywords,
    doc_pages.unknown_members,
    doc_pages.unknown_names,
    doc_pages.unknown_targets,
    doc_pages.private_words,
)


@pytest.mark.parametrize("page", EXECUTED, ids=str)
def test_code(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        page.run()


@pytest.mark.parametrize("page", WRITTEN, ids=str)
def test_text(page: Page) -> None:
    assert [problem for check in CHECKS for problem in check(page)] == []


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_report(path: Path) -> None:
    page = Page(path)
    checks = (doc_pages.broken_links, doc_pages.missing_scripts, doc_pages.unknown_targets, doc_pages.private_words)
    assert [problem for check in checks for problem in check(page)] == []


def test_index_links_every_report() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "reports" / "index.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in REPORTS}


def test_navigation_has_every_page() -> None:
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_command_line_page_has_every_command() -> None:
    text = Page(DOCS / "reference" / "cli.md").text
    assert text.count(cli_reference.MARKER) == 1
    for name, options in doc_pages.list_options("ingot").items():
        assert f"`ingot {name}".strip() in text
        section = re.search(rf"^## ingot {name}$.*?(?=^## |\Z)", cli_reference.describe_commands(), re.M | re.S)
        assert not name or section
        assert [
            o
            for o in options - {"-h", "--help"}
            if o.startswith("-") and section and not re.search(rf"`{o}[` ]", section[0])
        ] == []


@pytest.mark.parametrize("name", ["api", "runtime"])
def test_docstrings_of_public_names(name: str) -> None:
    page = Page(DOCS / "reference" / f"{name}.md")
    assert len(doc_pages.docstrings(page)) > 10
    assert doc_pages.bad_docstrings(page) == []


def test_changelog_form() -> None:
    """That of Keep a Changelog: one linked section per version, whose parts have the usual names, once each."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    assert titles[0] == "[Unreleased]"
    for title, section in zip(titles, sections, strict=True):
        assert re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title)
        assert re.search(rf"^{re.escape(title.partition(' ')[0])}: https://", text, re.M)
        parts = re.findall(r"^### (.*)$", section, re.M)
        assert len(set(parts)) == len(parts)
        assert set(parts) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<img alt="a" src=https://host.example/a.png>', ["https://host.example/a.png"]),
        ('<a href="https://host.example">x</a><script src="assets/x.js"></script>', []),
    ],
)
def test_resources_of_other_hosts_are_found(html: str, found: list[str]) -> None:
    assert external_resources.find_external_resources(html) == found


def test_table_of_passes() -> None:
    """Every pass of the default pipeline is in the table, and every row has the options of its pass."""
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", Page(DOCS / "reference" / "api.md").text, re.M)
    listed = {name: set(re.findall(r"`(\w+)`", options)) for name, options in rows}
    assert {step.__name__ for step in ingot.passes.DEFAULT_PIPELINE} <= set(listed)
    for name, options in listed.items():
        assert options == set(inspect.signature(ingot.passes.REGISTRY[name]).parameters) - {"program"}, name


def test_lines_of_code_fit_the_page() -> None:
    """Longer lines scroll in the browser."""
    long = [
        f"{page}:{block.line + index}"
        for page in WRITTEN
        for block in page.blocks
        if block.language == "python"
        for index, line in enumerate(block.text.splitlines())
        if len(line) > 100
    ]
    assert long == []


def test_benchmark_table() -> None:
    made = readme_table.table(json.loads(readme_table.RESULTS.read_text(encoding="utf-8")))
    text = readme_table.README.read_text(encoding="utf-8")
    assert readme_table.replaced(text, made) == text, "run python benchmarks/support/readme_table.py --write"


def test_environment_variables() -> None:
    """Every variable is read in the config.py of its package, and the page names it."""
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "config.py":
            assert not re.search(r"getenv|environ(\.get\(|\[)", text), file
            continue
        names = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        read = {name for name in names if isinstance(name, str) and re.fullmatch(r"[A-Z][A-Z_]+", name)}
        assert ("INGOT_CACHE_DIR" if file.parent.name == "ingot" else "INGOT_CUDA_DRIVER") in read
        assert [name for name in sorted(read) if f"`{name}`" not in page] == []


# ---------------------------------------------------------------------- the checks can fail


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](missing.md)", "missing.md does not exist"),
        ("[a](page.md#nowhere)", "no such heading"),
        ("`lowering/missing.py`", "`lowering/missing.py` does not exist"),
        ("`ingot.passes.missing`", "ingot.passes.missing does not exist"),
        ("```python\ningot.missing(x)\n```", "ingot.missing does not exist"),
        ("Run `make missing`.", "`make missing` does not exist"),
        ("Run `ingot missing`.", "no command missing"),
        ("Run `ingot compile --missing`.", "no option --missing"),
        ("Run `ingot run --profile m.ingot`.", "no option --profile"),  # of bench
        ("Pass `--missing`.", "no option --missing"),
        ("    ingot bench --missing x:y  # why\n", "no option --missing"),
        ("```\ningot sign --missing\n```", "no option --missing"),
        ("`python -m ingot_runtime describe|missing`", "no command missing"),
        ("`python -m tests.missing`", "tests.missing does not exist"),
        ("`ingot.compile(model, missing=True)`", "ingot.compile has no argument missing"),
        ("`program.missing()`", "Program has no missing"),
        ("`compiled.missing`", "CompiledModel has no missing"),
        ("It hangs on the size.", "write 'depends on'"),
    ],
)
def test_a_mistake_is_found(page: Page, text: str, said: str) -> None:
    page.path.write_text(text + "\n", encoding="utf-8")
    assert said in "".join(problem for check in CHECKS for problem in check(page))


def test_bad_docstrings_are_found(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.path.write_text("::: ingot.capture\n::: ingot.compile\n", encoding="utf-8")
    assert doc_pages.bad_docstrings(page) == []
    monkeypatch.setattr(ingot.capture, "__doc__", "")
    monkeypatch.setattr(ingot.compile, "__doc__", "It hangs on the size.")
    first, second = doc_pages.bad_docstrings(page)
    assert "ingot.capture: no docstring" in first and "ingot.compile: 'hangs on'" in second


def test_good_text_passes(page: Page) -> None:
    page.path.write_text(
        "# A b\n\n[a](#a-b) `src/ingot/api.py` `lowering/rules/` `ingot.compile` `make test`\n\n"
        "`ingot.compile(m, args, training=True)` `compiled.save(path, program=True)` `types.failures`\n"
        "`ingot --install-completion` `ingot compile a.b:c -o m.ingot` `--profile` `python -m tests.evidence run`\n"
        "\n    ingot run m.ingot --input x=x.npy  # --nothing\n"
        "    python -m ingot_runtime self-test m.ingot --trust-key k.pem\n",
        encoding="utf-8",
    )
    assert [problem for check in CHECKS for problem in check(page)] == []


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("# A\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", AssertionError, 8),
        ("```python\nprint(3)\n```\n\n<!-- output -->\n```text\n4\n```\n", AssertionError, None),
        ("```python\nimport nowhere_at_all\n```\n", ModuleNotFoundError, 2),
    ],
)
def test_code_that_fails_is_found(page: Page, text: str, error: type[Exception], line: int | None) -> None:
    page.path.write_text(text, encoding="utf-8")
    with pytest.raises(error) as raised:
        page.run()
    if line is not None:
        assert raised.traceback[-1].lineno + 1 == line or any(
            entry.path == page.path and entry.lineno + 1 == line for entry in raised.traceback
        )


def test_code_that_is_only_shown_is_not_executed(page: Page) -> None:
    page.path.write_text("<!-- not executed -->\n```python\n1 / 0\n```\n\n```python\nx = 3\n```\n", encoding="utf-8")
    assert page.run()["x"] == 3
