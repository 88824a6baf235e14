"""Counts names in src/ that break the naming rules: python tools/check_names.py [--list]

A function is a verb: one that is a participle (`narrowed`) or begins with a preposition (`in_blocks`) counts.
Properties and dunder methods do not. A class name is unique in the project. A budget only falls: whoever renames
lowers it here.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src/ingot", "src/ingot_runtime")

BUDGETS = {"participles": 12, "prepositions": 4, "duplicate class names": 0}


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that end like participles, or have that form, and are verbs or nouns of their own.
_NOT_PARTICIPLES = _set("bed embed exceed feed need proceed red searchsorted seed shed speed succeed")
_IRREGULAR = _set(
    "begun bent bought bound broken brought built caught chosen done drawn driven fed felt forgotten found frozen"
    " given gone got grown heard held hidden kept known laid led left lent lost made meant met paid rebuilt rewritten"
    " said seen sent shaken shown spoken spelled spent spun stood struck taken taught thought thrown told torn"
    " understood unknown unwritten woken won worn wound written"
)
_PREPOSITIONS = _set(
    "about above across after against along among around as at before behind below beneath beside besides between"
    " beyond by down during for from in inside into like near of off on onto out outside over past per through to"
    " toward towards under until up upon with within without"
)
_ADVERBS = _set("again and anew apart back elsewhere evenly here once there")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            is_property = any("property" in text or text.endswith(".setter") for text in decorators)
            if not is_property and not (node.name.startswith("__") and node.name.endswith("__")):
                yield node


def words(name: str) -> list[str]:
    return [word for word in name.split("_") if word]


def is_participle(name: str) -> bool:
    """Whether a name is a participle: `narrowed`, `_told`, `taken_in`, `made_here`. Before a noun it is an adjective,
    as in `mutated_tensors`."""
    first, *rest = words(name) or [""]
    if rest and rest[0] not in _PREPOSITIONS | _ADVERBS:
        return False
    return first in _IRREGULAR or (first.endswith("ed") and len(first) > 3 and first not in _NOT_PARTICIPLES)


def is_prepositional(name: str) -> bool:
    """Whether a name begins with a preposition. `from_x` and `to_x` convert, as `torch.from_numpy` does: they stay."""
    first, *rest = words(name) or [""]
    return first in _PREPOSITIONS and not (first in ("from", "to", "on", "as") and rest)


def find() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {kind: [] for kind in BUDGETS}
    classes: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            where = file.relative_to(ROOT)
            for node in functions(tree):
                if is_participle(node.name):
                    found["participles"].append(f"{where}:{node.lineno}: {node.name}")
                elif is_prepositional(node.name):
                    found["prepositions"].append(f"{where}:{node.lineno}: {node.name}")
            for one in ast.walk(tree):
                if isinstance(one, ast.ClassDef):
                    classes[one.name].append(f"{where}:{one.lineno}: {one.name}")
    for places in classes.values():
        if len(places) > 1:
            found["duplicate class names"].extend(places)
    return found


def main() -> int:
    found = find()
    if "--list" in sys.argv[1:]:
        for kind, places in found.items():
            print(f"{kind}:", *places, sep="\n  ")
    failed = 0
    for kind, places in found.items():
        budget = BUDGETS[kind]
        if len(places) > budget:
            print(f"{kind}: {len(places)}, and at most {budget} are allowed; see tools/check_names.py --list")
            failed = 1
        elif len(places) < budget:
            print(f"{kind}: {len(places)}, fewer than the budget of {budget}: lower it in tools/check_names.py")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
