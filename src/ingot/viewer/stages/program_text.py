"""The printed text of a program: which line shows which node."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import fx

from ingot.ir import metadata
from ingot.ir.printer import operator_name
from ingot.viewer.source_files import short_path
from ingot.viewer.view_data import NOWHERE

# How a line of a node begins: "name: f32[4] = …", "def name(…", or "aten.copy_(…" where there is no value.
_HEAD = re.compile(r"(?:def )?[\w.]+")
_SOURCE = re.compile(r"(?P<indent>\s*)# (?P<place>.*?:\d+)(?=  |$)")


def find_lines(module: fx.GraphModule, text: Sequence[str]) -> dict[fx.Node, int]:
    """The line of each node that has one. Nodes are printed in order, regions where they are named."""
    heads: dict[str, list[int]] = {}
    for number, line in enumerate(text):
        head = _HEAD.match(line.strip())
        if head is not None:
            heads.setdefault(head[0], []).append(number)
    found: dict[fx.Node, int] = {}
    first = next((number for number, line in enumerate(text) if line.startswith("def forward(")), 0)
    body = next((number for number in range(first, len(text)) if text[number].endswith("):")), first) + 1
    at = first
    for node in module.graph.nodes:  # state has no line; that of a region may have its name
        if node.op == "placeholder" and any(first <= line < body for line in heads.get(node.name, ())):
            at = _take(heads, (node.name,), at, node, found)
    at = body
    for node in _printed_nodes(module):
        at = _take(heads, _heads_of(node), at, node, found)
    output = next((node for node in reversed(module.graph.nodes) if node.op == "output"), None)
    if output is not None:
        _take(heads, ("return",), at, output, found)
    return found


def _take(
    heads: Mapping[str, list[int]], names: Sequence[str], at: int, node: fx.Node, found: dict[fx.Node, int]
) -> int:
    """Finds a node's line from line `at` on; returns the line behind it, or `at` where there is none."""
    first: int | None = None
    for lines in (heads.get(name, ()) for name in names):
        place = bisect.bisect_left(lines, at)
        if place < len(lines) and (first is None or lines[place] < first):
            first = lines[place]
    if first is None:
        return at
    found[node] = first
    return first + 1


def _printed_nodes(module: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes that have a line, in the order of the lines."""
    shown: set[str] = set()
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        yield node
        name = str(node.target)
        inner = getattr(module, name, None) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule) and name not in shown:
            shown.add(name)
            yield from _printed_nodes(inner)


def _heads_of(node: fx.Node) -> tuple[str, ...]:
    if node.op == "get_attr":
        return f"def {node.name}", node.name
    if metadata.value_of(node) is None and not node.users and node.op == "call_function":
        return node.name, operator_name(node.target)
    return (node.name,)


def link_lines(text: Sequence[str], nodes: Mapping[int, int]) -> list[int]:
    """The node of each line: a comment with a line of the user's code belongs to the node below it."""
    links = [nodes.get(number, NOWHERE) for number in range(len(text))]
    for number in reversed(range(len(text) - 1)):
        if links[number] == NOWHERE and _SOURCE.match(text[number]):
            links[number] = links[number + 1]
    return links


def mask_sources(module: fx.GraphModule, hides: Callable[[str], bool]) -> None:
    """Puts the names of files that may not be shown into angle brackets: nothing reads text from such a file."""
    for node in module.graph.nodes:
        source = metadata.source_of(node)
        if source is not None and hides(source.file):
            hidden = f"<{short_path(source.file).strip('<>')}>"
            metadata.set_source(node, metadata.Source(hidden, source.line, source.function))
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            mask_sources(child, hides)
