"""A TorchScript file on the command line: its arguments as `--input` describes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ingot.ir.program import Program

_TENSOR = re.compile(r"^(?P<dtype>[a-z]+\d*)\[(?P<sizes>[^\]]*)\]$")
_SHORT = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat"}


def read(path: str, inputs: Sequence[str], dynamic_shapes: Any, method: str, unroll: bool, preserve: Any) -> Program:
    """The script in a file as a Program. Raises typer.BadParameter and CaptureError."""
    from ingot import api

    kwargs, shapes = parse_inputs(inputs)
    for name, dims in (dynamic_shapes or {}).items():
        shapes[name] = dims
    return api.from_torchscript(
        path,
        () if kwargs else None,
        kwargs,
        method=method,
        dynamic_shapes=shapes or None,
        unroll=unroll,
        preserve_module_call_signature=preserve,
    )


def parse_inputs(declarations: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--input` options as keyword arguments and their dynamic dims.

        ["x=f32[batch,3]", "n=4"]
        {"x": torch.zeros(2, 3), "n": 4}, {"x": {0: "batch"}}

    A size that is a name is a dim that may change. Raises typer.BadParameter.
    """
    import torch

    kwargs: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    examples: dict[str, int] = {}
    for text in declarations:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or name in kwargs:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=DTYPE[SIZES] or NAME=NUMBER, or comes twice.")
        match = _TENSOR.match(value)
        if match is None:
            kwargs[name] = _number(text, value)
            continue
        sizes = [part.strip() for part in match["sizes"].split(",") if part.strip()]
        dtype = getattr(
            torch, _SHORT.get(match["dtype"].rstrip("0123456789"), "") + match["dtype"].lstrip("bfiu"), None
        )
        dtype = getattr(torch, match["dtype"], None) or dtype
        if not isinstance(dtype, torch.dtype) or not all(s.isdecimal() or s.isidentifier() for s in sizes):
            raise typer.BadParameter(f'{text!r}: a tensor reads "x=f32[2,3]" or "x=int64[batch,3]".')
        dims = {dim: size for dim, size in enumerate(sizes) if not size.isdecimal()}
        # Sizes that differ from name to name, so that none of them is taken for another.
        shape = [int(s) if s.isdecimal() else examples.setdefault(s, 2 + len(examples)) for s in sizes]
        kwargs[name] = torch.zeros(shape, dtype=dtype)
        if dims:
            shapes[name] = dims
    return kwargs, shapes


def _number(text: str, value: str) -> Any:
    plain = {"true": True, "false": False, "none": None}
    if value.lower() in plain:
        return plain[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise typer.BadParameter(f'{text!r}: {value!r} is neither a number nor a tensor such as "f32[2,3]".')
