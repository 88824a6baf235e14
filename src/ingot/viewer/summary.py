"""A program and a compiled model in a few lines: what a notebook shows of them, and `repr(compiled)`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ingot.ir import metadata, pytree
from ingot.ir.execution import named_path
from ingot.ir.printer import describe_value
from ingot.ir.signature import InputKind, OutputKind

if TYPE_CHECKING:
    from ingot.artifacts.compiled_model import CompiledModel
    from ingot.ir.program import Program

_UNITS = ("B", "kB", "MB", "GB", "TB")
_LISTED = 12  # arguments and results; more are counted


def name_of(program: Program) -> str:
    """The class that was captured, or "Program"."""
    root = next((call.type for call in program.module_calls if not call.module), "")
    return root.replace(":", ".").rsplit(".", 1)[-1] or "Program"


def format_bytes(size: float) -> str:
    unit = 0
    while size >= 1000 and unit + 1 < len(_UNITS):
        size /= 1000
        unit += 1
    return f"{size:.{1 if unit else 0}f} {_UNITS[unit]}"


def takes(program: Program) -> list[str]:
    """Each argument with its type."""
    signature = program.signature
    values = {node.name: metadata.value_of(node) for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for spec, path in zip(signature.user_inputs, pytree.leaf_paths(signature.in_tree), strict=True):
        if spec.kind is InputKind.ARGUMENT:
            found.append(f"{pytree.format_path(named_path(program, path))}: {describe_value(values.get(spec.name))}")
    return found


def gives(program: Program) -> list[str]:
    """The type of each result."""
    values = {node.name: metadata.value_of(node) for node in program.graph.nodes}
    results = [output for output in program.signature.user_outputs if output.kind is OutputKind.RESULT]
    return [describe_value(values.get(output.name)) for output in results]


def describe_compiled(compiled: CompiledModel) -> str:
    """`repr(compiled)`: its name, what it takes and gives, where it runs, kernels and sizes."""
    program = compiled.program
    return (
        f"<ingot compiled {name_of(program)}: ({_shorten(takes(program))}) → ({_shorten(gives(program))}); "
        f"{compiled.isa}, {compiled.threads} threads, {compiled.precision}; {compiled.kernels} kernels, "
        f"{compiled.launches} launches, weights {format_bytes(compiled.weight_bytes)}>"
    )


def _shorten(items: Sequence[str]) -> str:
    more = len(items) - _LISTED
    return ", ".join([*items[:_LISTED], *([f"{more} more"] if more > 0 else [])])


def program_html(program: Program) -> str:
    """A table for notebooks. Everything in it is escaped."""
    parameters = list(program.parameters().values())
    count = sum(tensor.numel() for tensor in parameters)
    size = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
    nodes = sum(node.op not in ("placeholder", "output") for node in program.graph.nodes)
    rows = [
        ("takes", "\n".join(takes(program)) or "nothing"),
        ("gives", "\n".join(gives(program)) or "nothing"),
        ("dims", "\n".join(map(str, program.dims)) or "all fixed"),
        ("needs", "\n".join(map(str, program.constraints))),
        ("nodes", f"{nodes:,}, {program.dialect.name}"),
        ("parameters", f"{count:,}, {format_bytes(size)}"),
        ("passes", ", ".join(f"{step.name} ({step.changes})" for step in program.history)),
    ]
    return _table(f"Program {name_of(program)}", rows, "program.view() shows every stage")


def compiled_html(compiled: CompiledModel) -> str:
    """A table for notebooks. Everything in it is escaped."""
    rows = [
        ("takes", "\n".join(takes(compiled.program)) or "nothing"),
        ("gives", "\n".join(gives(compiled.program)) or "nothing"),
        ("target", f"{compiled.isa}, {compiled.threads} threads, {compiled.precision}"),
        ("kernels", f"{compiled.kernels}, {compiled.launches} launches"),
        ("weights", format_bytes(compiled.weight_bytes)),
        ("source", f"{compiled.source.count(chr(10)):,} lines"),
    ]
    return _table(f"Compiled {name_of(compiled.program)}", rows, "compiled.view() shows its stages")


def _table(title: str, rows: Iterable[tuple[str, str]], hint: str) -> str:
    shown = "".join(
        f'<tr><th style="text-align: left; vertical-align: top">{html.escape(label)}</th>'
        f'<td style="text-align: left; white-space: pre-wrap">{html.escape(text)}</td></tr>'
        for label, text in rows
        if text
    )
    return f"<table><caption>{html.escape(title)}</caption>{shown}</table><p><code>{html.escape(hint)}</code></p>"
