"""Functional forms of custom operators that mutate their arguments: they write to copies.

    user::bump(Tensor(a!) x, float by) -> ()            unwritten_user::bump(Tensor x, float by) -> Tensor
    user::stamp(Tensor(a!) x, Tensor y) -> Tensor       unwritten_user::stamp(Tensor x, Tensor y) -> (Tensor, Tensor)

Such an operator returns what the other returns and then what was written, in the order of the arguments. It is defined
at first use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.ir import metadata
from ingot.torch_internals.custom_ops import define, defining, differentiate

PREFIX = "unwritten_"
_ALIAS = re.compile(r"(\w)\(\w+!?(?: -> [\w*]+)?\)")
_FORMS: dict[internals.OpOverload, internals.OpOverload] = {}
_ORIGINS: dict[internals.OpOverload, internals.OpOverload] = {}


def has_form(target: Any) -> bool:
    """Whether a target is an operator that only this can make functional: it writes, and torch does not know how."""
    return (
        isinstance(target, internals.OpOverload)
        and target.namespace not in ("aten", "prims", "prim")
        and target._schema.is_mutable
        and all(str(target._schema.arguments[i].type) in ("Tensor", "List[Tensor]") for i in mutated_positions(target))
    )


def make_functional(op: internals.OpOverload) -> internals.OpOverload:
    """The operator that does what `op` does to copies of the arguments that `op` writes to."""
    with defining:
        if op not in _FORMS:
            made = define(PREFIX + op.namespace, _schema_of(op), _kernel_of(op), _kernel_of(op))
            differentiate(made, _kernel_of(op))
            _FORMS[op], _ORIGINS[made] = made, op
        return _FORMS[op]


def origin_of(target: Any) -> internals.OpOverload | None:
    """The operator that `make_functional` made this one of; None for any other."""
    return _ORIGINS.get(target) if isinstance(target, internals.OpOverload) else None


def mutated_positions(op: internals.OpOverload) -> list[int]:
    """The positions of the arguments that an operator writes to."""
    return list(internals.mutated_positions(op))


def returned_positions(op: internals.OpOverload) -> list[int | None]:
    """For each result of an operator the argument that it is, or None for one of its own."""
    return list(internals.returned_positions(op))


def arguments_of(op: internals.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call, in the schema's order, with defaults."""
    return list(internals.fill_arguments(op, args, kwargs).values())


def _schema_of(op: internals.OpOverload) -> str:
    head = _ALIAS.sub(r"\1", str(op._schema).rpartition(" -> ")[0]).partition("::")[2]
    own = [str(r.type) for r, i in zip(op._schema.returns, returned_positions(op), strict=True) if i is None]
    results = [*own, *(str(op._schema.arguments[i].type) for i in mutated_positions(op))]
    spelled = [re.sub(r"^List\[(.*)\]$", r"\1[]", kind) for kind in results]
    return f"{head} -> " + (spelled[0] if len(spelled) == 1 else f"({', '.join(spelled)})")


def _kernel_of(op: internals.OpOverload) -> Any:
    places, origins = mutated_positions(op), returned_positions(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        targets = internals.values_at(op, places, args, kwargs)
        # What is given twice is one tensor, of which one copy is made.
        copies = {id(t): t.clone() for t in metadata.tensors_in(targets)}
        out = op(*_copy(args, copies), **_copy(kwargs, copies))
        results = (out,) if len(origins) == 1 else tuple(out or ())
        own = [r for r, origin in zip(results, origins, strict=True) if origin is None]
        made = (*own, *_copy(targets, copies))
        return made[0] if len(made) == 1 else made

    return run


def _copy(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_copy(item, copies) for item in value)
    if isinstance(value, dict):
        return {key: _copy(item, copies) for key, item in value.items()}
    return copies.get(id(value), value)


def check_apart(node: fx.Node) -> None:
    """Raises PassError where a call reads what it writes under another name: copies would not see the write."""
    op: Any = node.target
    given = arguments_of(op, node.args, dict(node.kwargs))
    nodes = [n for n in node.all_input_nodes if isinstance(metadata.value_of(n), torch.Tensor)]
    for place in mutated_positions(op):
        for target in given[place] if isinstance(given[place], list | tuple) else (given[place],):
            storage = internals.storage_id(metadata.value_of(target))
            twin = next((n for n in nodes if n is not target and _lies_in(n, storage)), None)
            if twin is not None:
                raise PassError(
                    format_error(
                        f"{node.name} writes to {target.name} and takes {twin.name}, which shares its memory.",
                        where=metadata.where(node),
                        why=f"{op} would be given copies, and a write to one would not be seen in the other",
                        fix=f"give it a clone of {twin.name}, or the same tensor twice",
                    )
                )


def _lies_in(node: fx.Node, storage: int) -> bool:
    return internals.storage_id(metadata.value_of(node)) == storage
