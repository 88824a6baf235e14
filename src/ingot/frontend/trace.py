"""`trace`: a model and example arguments → a Program in the CAPTURED dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.export import ExportedProgram

from ingot import torch_internals as internals
from ingot.errors import CaptureError, DynamicShapeError, EagerError, LiteralError, format_error
from ingot.frontend import call_signature, error_translation
from ingot.frontend import dynamic_shapes as dynamic
from ingot.frontend.capture_session import CaptureSession, Untranslated
from ingot.frontend.dtype_checks import DtypesRefused
from ingot.frontend.dynamic_shapes import AutomaticDimsResolved, DimSpec
from ingot.ir import pytree
from ingot.ir.program import Program


def trace(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
) -> Program:
    """Runs the model once on fake tensors and writes down what it did. The model is left as it was."""
    if not callable(model):
        raise CaptureError(format_error(f"capture takes a module or a function, not {type(model).__name__}."))
    if isinstance(args, torch.Tensor):
        raise CaptureError(format_error("args is a tensor.", fix="give the positional arguments as a tuple: (x,)"))
    call = model.forward if isinstance(model, nn.Module) else model
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # torch.export's ShapesCollection and AdditionalInputs
        dynamic_shapes = dynamic_shapes.dynamic_shapes(model, tuple(args), dict(kwargs or {}))
    args, kwargs, fixed = _fix_arguments(call, tuple(args), dict(kwargs or {}), concrete_args)
    call_signature.bind_check(call, args, kwargs)

    asking: set[str] = set()

    def run(
        *, exporting: bool = True, larger_by_symbols: bool = False, enlarged: bool = False, symbolic: bool = False
    ) -> Program:
        def attempt(resolved: Mapping[str, DimSpec | None]) -> Program:
            def make() -> CaptureSession:
                _check_open(model)
                session = CaptureSession(
                    model, args, kwargs, dynamic_shapes, preserve_module_call_signature, fixed, exporting, resolved,
                    enlarged,
                )  # fmt: skip
                session.larger_by_symbols = larger_by_symbols
                session.symbolic_modules = frozenset(asking) if symbolic else frozenset()
                session.asking_modules = asking
                return session

            return run_session(make)

        return resolve_automatic(attempt)

    try:
        return _choose_wider(run(), lambda: run(enlarged=True))
    except EagerError:
        raise
    except CaptureError as failure:
        if isinstance(failure.__cause__, DtypesRefused):
            # Eager takes these dtypes, so the small tensors of the check were rejected for another reason.
            failure.__cause__.accept()
            return trace(
                model, args, kwargs, dynamic_shapes=dynamic_shapes,
                preserve_module_call_signature=preserve_module_call_signature, concrete_args=concrete_args,
            )  # fmt: skip
        if isinstance(failure, DynamicShapeError):
            # Python's len, int and float may be symbols; they are replaced in the modules that asked for numbers only.
            for larger_by_symbols in (False, True):
                with suppress(CaptureError):
                    return run(symbolic=True, larger_by_symbols=larger_by_symbols)
            # The larger of two sizes may be left to the run; not at once, as most models are better off if it is known.
            # Larger sizes may help where some value has a size of 0 or 1 in the example.
            for larger_by_symbols, enlarged in ((True, False), (False, True), (True, True)):
                with suppress(CaptureError):
                    return run(larger_by_symbols=larger_by_symbols, enlarged=enlarged)
        # Some models take another path when they know that they are being exported, and some of those paths are broken.
        with suppress(CaptureError):
            return run(exporting=False)
        raise failure


def _choose_wider(program: Program, again: Callable[[], Program]) -> Program:
    """The program, or what `again` returns, if that needs fewer sizes to be equal to something or bounded above."""

    def count(found: Program) -> int:
        equations = sum(isinstance(constraint.condition, sympy.Eq) for constraint in found.constraints)
        return equations + sum(dim.high is not None for dim in found.dims)

    if count(program):
        with suppress(CaptureError):
            other = again()
            if count(other) < count(program) and len(other.dims) >= len(program.dims):
                return other
    return program


def resolve_automatic(attempt: Callable[[Mapping[str, DimSpec | None]], Program]) -> Program:
    """A capture; each automatic dim becomes static, or another dim's function, where the trace needs it.

    `attempt` takes what automatic dims are as far as earlier attempts found out.
    """
    resolved: dict[str, DimSpec | None] = {}
    while True:
        try:
            return attempt(resolved)
        except AutomaticDimsResolved as failure:
            found = {name: spec for name, spec in failure.resolved.items() if name not in resolved}
            if not found:
                raise
            resolved.update(found)


def run_session(make: Callable[[], CaptureSession]) -> Program:
    """The program of a session, which is made where it runs: a model that another thread captures holds fakes."""
    made: list[CaptureSession] = []

    def run(_: internals.Region) -> Program:
        made.append(make())
        return made[0].run()

    try:
        return internals.run_isolated(run)
    except Untranslated as failed:
        failure = failed.failure
    try:
        error = error_translation.translate(failure, made[0].run_eager)
        if type(error) is CaptureError and error is not failure:
            error = dynamic.blame_traced_sizes(made[0].declared, error) or error
        if error is failure:
            raise failure
        raise error from (error.__cause__ or failure)
    finally:
        del failure, error  # their tracebacks hold this frame, and the fakes


def _check_open(model: object) -> None:
    """Raises CaptureError if the model, or a part of it, is in a form that another function of ours reads."""
    if isinstance(model, ExportedProgram):
        raise CaptureError(
            format_error("The model is captured: it is an ExportedProgram.", fix="use ingot.from_exported")
        )
    why = "torch runs TorchScript where capture cannot see into it"
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise CaptureError(
            format_error("The model is TorchScript.", why=why, fix="use ingot.from_torchscript(script, args)")
        )
    for path, part in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(
                format_error(
                    f"The submodule {path} is TorchScript.",
                    why=why,
                    fix="give the model the module that it was scripted from, or script the whole model and use "
                    "ingot.from_torchscript(torch.jit.script(model), args)",
                )
            )


def _fix_arguments(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], concrete: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any], frozenset[int]]:
    """The arguments with the values of `concrete_args` put in, and which tensors among them are fixed.

    torch.fx's PH stands for "as given in the example".
    """
    if not concrete:
        return args, kwargs, frozenset()
    names = [p.name for p in call_signature.signature_parameters(call)]
    out = list(args)
    fixed: set[int] = set()
    for name, value in concrete.items():
        if name in names and names.index(name) < len(out):
            index = names.index(name)
            out[index] = _fix_value(name, value, out[index], fixed)
        elif name in names or name in kwargs:
            kwargs[name] = _fix_value(name, value, kwargs.get(name, value), fixed)
        else:
            raise CaptureError(
                format_error(
                    f"concrete_args names {name!r}, which is not an argument of the model.",
                    why=f"its arguments are {', '.join(names)}",
                )
            )
    return tuple(out), kwargs, frozenset(fixed)


def _fix_value(name: str, value: Any, given: Any, fixed: set[int]) -> Any:
    value_leaves, value_tree = pytree.flatten(value)
    given_leaves, given_tree = pytree.flatten(given)
    if value_tree != given_tree:
        given_leaves = value_leaves
    leaves = []
    for wanted, other in zip(value_leaves, given_leaves, strict=True):
        if wanted is fx.PH:
            leaves.append(other)
            continue
        if not isinstance(wanted, torch.Tensor) and not isinstance(other, torch.Tensor) and wanted != other:
            raise LiteralError(
                format_error(f"concrete_args fixes {name} to {wanted!r}, but the example has {other!r}.")
            )
        if isinstance(wanted, torch.Tensor):
            fixed.add(id(wanted))
        leaves.append(wanted)
    return pytree.unflatten(leaves, value_tree)
