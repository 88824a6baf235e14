"""export_onnx(), one line per stage: passes, the model, the file, and what ONNX Runtime makes of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ingot import _gc, pipelines
from ingot import torch_internals as internals
from ingot.errors import OnnxError, OnnxUnavailable, format_error
from ingot.interop.train_eval import warn_of_train_mode
from ingot.ir import symbolic_dims
from ingot.ir.metadata import value_of
from ingot.ir.program import Program, check_program
from ingot.passes.decompose_complex import has_rule
from ingot.passes.instrumentation import differential_check
from ingot.passes.manager import run_pipeline

# The packages of the extra `onnx` are optional: without them this module imports, and export_onnx raises.
try:
    from ingot.onnx import convert, file_writer, verification
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("onnx", "onnx_ir", "ml_dtypes"):
        raise
    _missing: ModuleNotFoundError | None = error
else:
    _missing = None

# Called with the name of each stage; the context manager that it returns is entered while the stage runs.
Watch = Callable[[str], AbstractContextManager[object]]


def _ignore_stage(stage: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class OnnxReport:
    """The result of an export: the files, the opset, and the differences from torch if the file was verified.

    `runner` is what ran the file, or None; `differences` has one entry for each call that was tried.
    `dropped_assertions` are the model's assertions, which ONNX cannot express.
    """

    files: tuple[Path, ...]
    opset: int
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    runner: str | None
    differences: tuple[verification.CallDifference, ...]
    random: bool
    dropped_assertions: tuple[str, ...] = ()

    @property
    def largest_difference(self) -> float | None:
        """The largest error over all calls, or None if the file was not run."""
        return max((one.error for one in self.differences), default=None)

    def __str__(self) -> str:
        lines = [f"{self.files[0]}: opset {self.opset}, {self.nodes} nodes"]
        lines += [f"    {one}" for one in self.differences]
        if self.runner is None:
            lines.append("    not verified")
        elif not self.differences:
            lines.append("    checked, but not run: the program has no example inputs")
        elif self.random:
            lines.append("    draws random numbers: types and shapes were compared, values were not")
        if self.dropped_assertions:
            lines.append("    warning: ONNX has no assertions; the file runs on where the model would have stopped:")
            lines += [f"        {said}" for said in self.dropped_assertions]
        return "\n".join(lines)


def export_onnx(
    program: Program,
    path: str | os.PathLike[str],
    opset: int | None = None,
    verify: bool = True,
    *,
    external_data: bool = False,
    on_stage: Watch = _ignore_stage,
) -> OnnxReport:
    """Exports the program to an ONNX file; nothing is written if anything fails.

    `verify` checks the file, runs it in ONNX Runtime at the example's sizes and two others, and compares with torch,
    before the file appears. `external_data` stores the weights in `path`.data; above 2 GB they are stored there in any
    case. A buffer that the model writes to is an input with a default value and an output: feed the output back to the
    input. Assertions are dropped, and the report lists them.

    Raises OnnxUnavailable if the extra `onnx` is not installed, UnsupportedByOnnx, which names every operator that ONNX
    cannot express, OnnxMismatch, or OnnxError.
    """
    if _missing is not None:
        raise OnnxUnavailable(
            format_error(
                f"The package {_missing.name} is not installed; ONNX export needs it.",
                fix="pip install 'ingot[onnx]'",
            )
        ) from _missing
    check_program(program, "export_onnx")
    if not isinstance(path, str | os.PathLike):
        raise OnnxError(
            format_error(
                f"The path of the file is {type(path).__name__}.",
                fix='call export_onnx(program, "m.onnx"): pass example inputs to ingot.capture',
            )
        )
    warn_of_train_mode(program, stacklevel=3)
    convert.check_opset(opset)
    target = Path(path)
    file_writer.check_place(target)
    with _gc.pause(), internals.real_tensors():
        with on_stage("passes"):
            ready = run_onnx_pipeline(program)
        with on_stage("convert"):
            exported = convert.convert(ready, opset)
        with file_writer.stage_file(target) as place:
            with on_stage("write"):
                names = file_writer.write(exported.model, place, external_data=external_data)
            runner: str | None = None
            differences: list[verification.CallDifference] = []
            if verify:
                with on_stage("check"):
                    verification.check_file(place)
                with on_stage("run"):
                    runner, differences = verification.compare(place, exported, _calls(program, exported))
    return OnnxReport(
        tuple(target.parent / name for name in names),
        exported.opset,
        len(exported.model.graph),
        tuple(name for name, _ in exported.inputs),
        tuple(name for name, *_ in exported.outputs),
        runner,
        tuple(differences),
        exported.draws,
        exported.dropped,
    )


def run_onnx_pipeline(program: Program) -> Program:
    """The program as the exporter takes it: functional, and decomposed only where ONNX has no operator."""
    made = program.copy()
    preserved = functools.partial(convert.whole, splits=has_rule)
    run_pipeline(made, pipelines.ONNX, arguments={pipelines.PRESERVED_OPS.name: preserved})
    return made


def _calls(program: Program, exported: convert.Exported) -> list[verification.ExampleCall]:
    """The program's trials in the words of the exported model."""
    calls = []
    inputs = program.signature.user_inputs
    for trial in differential_check.trials(program):
        arguments = {i.name: leaf for i, leaf in zip(inputs, trial.leaves, strict=True) if i.name}
        expected = functools.partial(_compute_expected, program, exported)
        near = functools.partial(_perturb_inputs, trial, expected)
        calls.append(
            verification.ExampleCall(
                _format_bound_sizes(program, arguments), arguments, expected(trial.own), expected(trial.exact), near
            )
        )
    return calls


def _perturb_inputs(
    trial: differential_check.Trial, expected: Callable[[Mapping[str, Any]], list[Any]]
) -> Iterator[tuple[list[Any], list[Any]]]:
    return ((expected(own), expected(exact)) for own, exact in trial.near())


def _compute_expected(program: Program, exported: convert.Exported, found: Mapping[str, Any]) -> list[Any]:
    """What each output of the model should be, of all that a call made known."""
    results = [value for name, value in found.items() if name.startswith("result")]
    places = {i.name: place for place, i in enumerate(program.signature.user_inputs)}
    by_kind: dict[str, Callable[[Any], Any]] = {
        "result": lambda place: results[place],
        "state": lambda key: found[f"state {key}"],
        "argument": lambda name: found[f"argument {places[name]}"],
    }
    return [by_kind[kind](what) for _, kind, what in exported.outputs]


def _format_bound_sizes(program: Program, arguments: Mapping[str, Any]) -> str:
    """The dims of a call, for people: batch = 2, seq = 8"""
    bound: dict[str, int] = {}
    for node in program.graph.nodes:
        value = value_of(node) if node.op == "placeholder" and node.name in arguments else None
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                bound.setdefault(symbolic_dims.format_dim(size), int(arguments[node.name].shape[dim]))
    return ", ".join(f"{name} = {size}" for name, size in bound.items())
