"""What a trace sees of each call of torch that the model makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ingot import torch_internals as internals
from ingot.autograd.missing_gradients import MissingGradients
from ingot.frontend.source_locations import user_frame
from ingot.ir.metadata import Source, tensors_in, trace_text


class ClosedOver(Exception):
    """The model computes with a tensor that the trace was not given. The trace begins anew, with that one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__("a tensor that is not an argument of the trace")
        self.tensor = tensor


class NeedsProgram(Exception):
    """The model computes with what autograd takes only from a Program: functions of operators, complex numbers."""


class CallTracer(TorchFunctionMode):
    """Gives each operator the user's line, each tensor of the state its stand-in, and notes what has no gradient."""

    def __init__(self, stand_ins: Mapping[int, torch.Tensor], missing: MissingGradients) -> None:
        super().__init__()
        self._stand_ins = stand_ins
        self._missing = missing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # x.shape and the like; a view of the state, as weight.T is, is a view of its stand-in
            return func(*self.substitute(args), **(kwargs or {}))
        source = _source()
        if source is not None:
            internals.set_trace_of_calls(trace_text(source.file, source.line, source.function))
        result = func(*self.substitute(args), **self.substitute(kwargs or {}))
        if any(tensor.is_complex() for tensor in tensors_in(result)):
            raise NeedsProgram  # else the forward half would hand complex numbers to the backward one
        if torch.is_grad_enabled():
            text = f"{source}" + (f": {source.text}" if source is not None and source.text else "")
            self._missing.note(tensors_in(result), f"aten.{name}", text)
        return result

    def substitute(self, value: Any) -> Any:
        """The value with stand-ins. Raises ClosedOver for a tensor that has none."""
        if isinstance(value, torch.Tensor):
            stand_in = self._stand_ins.get(id(value))
            if stand_in is not None:
                return stand_in
            if internals.is_real(value):
                raise ClosedOver(value)
            return value
        if type(value) in (list, tuple):
            return type(value)(self.substitute(part) for part in value)
        if type(value) is dict:
            return {key: self.substitute(part) for key, part in value.items()}
        return value


def _source() -> Source | None:
    frame = user_frame()
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
