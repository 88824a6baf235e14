"""The entry point: a script, from memory or from a file → a Program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch
from torch import nn

from ingot.errors import CaptureError, format_error
from ingot.frontend import call_signature
from ingot.frontend import dynamic_shapes as dynamic
from ingot.frontend.capture_session import CaptureSession
from ingot.frontend.torchscript import module_adapter
from ingot.frontend.torchscript.example_inputs import examples_of
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter
from ingot.frontend.trace import resolve_automatic, run_session
from ingot.ir.program import Program
from ingot.torch_internals import torchscript as ts

# A ScriptModule, a ScriptFunction, a file of one (by its path, or open), or a quantized nn.Module.
Script: TypeAlias = nn.Module | Callable[..., Any] | str | os.PathLike[str] | IO[bytes]


def import_script(
    script: Script,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    method: str = "forward",
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    unroll: bool = False,
) -> Program:
    """Runs the script's graph once on fake tensors and writes down what it did. The script is left as it was."""
    found = _open(script, args, kwargs)
    schema, graph = _entry(found, method)
    if isinstance(args, torch.Tensor):
        raise CaptureError(format_error("args is a tensor.", fix="give the positional arguments as a tuple: (x,)"))
    if args is None and not kwargs:
        args, dynamic_shapes = examples_of(schema, graph, dynamic_shapes, skip_self=isinstance(found, nn.Module))
    given, named = tuple(args or ()), dict(kwargs or {})
    original = found if method == "forward" or not isinstance(found, nn.Module) else getattr(found, method)

    def attempt(resolved: Mapping[str, dynamic.DimSpec | None]) -> Program:
        def make() -> CaptureSession:
            machine = TorchScriptInterpreter(unroll=unroll)
            model = _model(found, schema, graph, machine, method)
            call_signature.bind_check(model.forward if isinstance(model, nn.Module) else model, given, named)
            session = _ScriptCaptureSession(
                model, original, given, named, dynamic_shapes, preserve_module_call_signature, resolved
            )
            machine.recorder = session.recorder
            return session

        return run_session(make)

    return resolve_automatic(attempt)


class _ScriptCaptureSession(CaptureSession):
    """A capture whose model is a machine's; what fails is tried on the script itself."""

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic_shapes: Any,
        preserve: Sequence[str],
        resolved: Mapping[str, dynamic.DimSpec | None],
    ) -> None:
        super().__init__(model, args, kwargs, dynamic_shapes, preserve, frozenset(), True, resolved)
        self._script = original

    @property
    def _original(self) -> Callable[..., Any]:
        return self._script


def _open(script: Script, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Any:
    """The ScriptModule or ScriptFunction that is meant."""
    if isinstance(script, str | os.PathLike):
        return _load(Path(script))
    if hasattr(script, "read") and hasattr(script, "seek"):
        return _load(script)
    if isinstance(script, (ts.ScriptModule, ts.ScriptFunction)):
        return script
    if isinstance(script, nn.Module) and ts.is_quantized(script):
        if args is None:
            raise CaptureError(
                format_error(
                    "A quantized module is traced first, which takes example arguments.", fix="give args=(x, …)"
                )
            )
        return ts.trace_module(script, tuple(args), dict(kwargs or {}))
    raise CaptureError(
        format_error(
            f"from_torchscript takes a ScriptModule, a ScriptFunction or a file of one, not {type(script).__name__}.",
            fix="use ingot.capture for a module or a function, or torch.jit.script it first",
        )
    )


def _load(path: Any) -> Any:
    try:
        return ts.load(path)
    except FileNotFoundError:
        raise
    except Exception as failure:
        raise CaptureError(
            format_error(
                f"{path if isinstance(path, Path) else 'It'} is not a TorchScript file that this torch can read.",
                why=str(failure).strip().splitlines()[0],
                fix="give a file that torch.jit.save wrote",
            )
        ) from failure


def _entry(script: Any, method: str) -> tuple[Any, ts.Graph]:
    """The schema and the graph of what is imported."""
    if isinstance(script, ts.ScriptFunction):
        return script.schema, script.graph
    if not ts.has_method(script, method):
        raise CaptureError(
            format_error(
                f"The script has no method {method!r}.",
                why=f"its methods are {', '.join(sorted(ts.method_names(script))) or 'none'}",
                fix="pass method=… ; a method that forward does not call needs @torch.jit.export",
            )
        )
    found = ts.method_of(script, method)
    return found.schema, found.graph


def _model(
    script: Any, schema: Any, graph: ts.Graph, machine: TorchScriptInterpreter, method: str
) -> nn.Module | Callable[..., Any]:
    """What the session calls."""
    if not isinstance(script, ts.ScriptFunction):
        return module_adapter.build(script, machine, method)

    def function(*args: Any, **kwargs: Any) -> Any:
        given = module_adapter.bind_arguments(schema, args, kwargs, skip_self=False)
        return machine.outermost(lambda: machine.call(graph, given, script.name))

    function.__signature__ = module_adapter.signature(schema)  # type: ignore[attr-defined]
    function.__name__ = script.name
    return function
