"""The math functions that a generated C file holds: the ones it uses, and what those need.

    source_of(["ig_tanh_f32"])    # the C text of ig_prelude, ig_bits_f32, …, ig_expm1_f32, ig_tanh_f32

They live in `codegen/c/math_*.h`. Each function begins with a comment that names it and what it needs,

    /* ig_tanh_f32: needs ig_expm1_f32 */

and ends where the next such comment begins. `ig_prelude`, which every function needs, is not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from ingot.codegen.headers import PORTABLE

# The order of the text: a function stands after everything it needs.
RESOURCES = (
    "math_base.h",
    "math_exp.h",
    "math_log.h",
    "math_trig.h",
    "math_special.h",
    "math_number.h",
    "math_integer.h",
    "random.h",
)
PRELUDE = "ig_prelude"

_HEAD = re.compile(r"^/\* (ig_\w+): needs ([\w, ]+?)(?= \*/|\n)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Function:
    """One function as the headers hold it: its text ends with one newline."""

    name: str
    needs: tuple[str, ...]
    text: str


def source_of(names: Iterable[str]) -> str:
    """The C text of these functions and of everything they need, each once, in an order that does not depend on
    the order of `names`; empty for no names. Raises KeyError for a name that no header holds."""
    table = functions()
    wanted: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in table:
            raise KeyError(f"no math function is called {name!r}; ingot.codegen.math_library.functions() lists them")
        if name not in wanted:
            wanted.add(name)
            stack.extend((PRELUDE, *table[name].needs))
    return "\n".join(function.text for name, function in table.items() if name in wanted)


@cache
def functions() -> Mapping[str, Function]:
    """Every function, by name, in the order of the headers; read once a process."""
    table: dict[str, Function] = {}
    for resource in RESOURCES:
        for function in _parse(PORTABLE.read(resource)):
            assert function.name not in table, f"{resource}: {function.name} is there twice"
            assert all(need in table for need in function.needs), f"{resource}: {function.name} stands before its needs"
            table[function.name] = function
    return table


def _parse(text: str) -> Iterable[Function]:
    heads = list(_HEAD.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        needs = () if head[2] == "nothing" else tuple(head[2].split(", "))
        end = following.start() if following else len(text)
        yield Function(head[1], needs, text[head.start() : end].rstrip("\n") + "\n")
