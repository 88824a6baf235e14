"""A hook of mkdocs: writes the arguments and options of every `ingot` command into docs/reference/cli.md.

The page has the line `<!-- commands -->`. Its replacement is derived from the command itself and is never outdated.
"""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from ingot.cli import app

PAGE, MARKER = "reference/cli.md", "<!-- commands -->"


def describe_commands() -> str:
    """One section per command: what it does, and a table of what it takes."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return "\n\n".join(_describe(name, command) for name, command in commands.items())


def _describe(name: str, command: Any, level: str = "##") -> str:
    inner = getattr(command, "commands", None)
    if inner is not None:
        summary = f"{level} ingot {name}\n\n{' '.join(command.help.split())}"
        return "\n\n".join([summary, *(_describe(f"{name} {one}", c, f"{level}#") for one, c in inner.items())])
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join(["ingot", name, *(_placeholder(p) for p in arguments), "[OPTIONS]"])
    rows = [
        *(f"| `{_placeholder(p)}` | {_escape(p.help)} |" for p in arguments),
        *(f"| {_flags(p)} | {_escape(p.help)} |" for p in options),
    ]
    summary = " ".join(command.help.split("\f")[0].split())
    return "\n".join(
        [
            f"{level} ingot {name}",
            "",
            summary,
            "",
            f"    {usage}",
            "",
            "| Argument or option | Meaning |",
            "|---|---|",
            *rows,
        ]
    )


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _flags(parameter: Any) -> str:
    metavar = f" {parameter.metavar}" if parameter.metavar else ""
    return ", ".join(f"`{flag}{metavar}`" for flag in (*parameter.opts, *parameter.secondary_opts))


def _escape(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_uri != PAGE:
        return markdown
    if MARKER not in markdown:
        raise ValueError(f"docs/{PAGE} has no line {MARKER}")
    return markdown.replace(MARKER, describe_commands())
