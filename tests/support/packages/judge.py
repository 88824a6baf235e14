"""What becomes of one model: captured by Ingot and by torch.export, compiled, exported to ONNX, compared with eager.

Judging a model fills a record step by step, so that what a crash ends is known.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import ingot
from ingot.errors import IngotError, InputError
from ingot.ir import pytree
from ingot.ir.execution import check_call
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot.onnx.api import export_onnx
from ingot.onnx.verification import check_file
from tests.support.oracle import Wrong, in_double, own_errors, quick_compiler, worst_ratio
from tests.support.packages.entry import Model

Record = dict[str, Any]
MODES = ("static", "dynamic")


def judge(model: Model, keep: Callable[[Record], None]) -> None:
    """Judges the model; `keep` is called with the record at every step."""
    record: Record = {"model": model.label, "step": "building"}
    keep(record)
    eager = _Eager(model)
    eager.at({})  # some keep what they make at the first call
    for mode in MODES:
        shapes = model.dynamic() if mode == "dynamic" else None
        if mode == "static" or shapes:
            record[mode] = {}
            _judge_mode(model, eager, shapes, record, record[mode], keep)
    record["step"] = "done"
    keep(record)


def _judge_mode(
    model: Model, eager: _Eager, shapes: Any, record: Record, row: Record, keep: Callable[[Record], None]
) -> None:
    def step(name: str) -> None:
        record["step"] = name
        keep(record)

    args, options = model.args(), dict(model.options)
    every = None if shapes is None else (*shapes, *(None for _ in options))

    def ours() -> Program:
        return ingot.capture(eager.module, copy.deepcopy(args), options, dynamic_shapes=every)

    def theirs() -> Any:
        with torch.no_grad():
            return torch.export.export(eager.module, copy.deepcopy(args), options, dynamic_shapes=every, strict=False)

    both = [("capturing", ours, "capture"), ("exporting with torch.export", theirs, "export")]
    made = {}
    for name, capture, key in both if _first(model.label) else reversed(both):
        step(name)
        made[key] = _captured(capture, row, key)
    program = made["capture"]
    if program is None:
        if row["export"] != "ok":
            step("capturing with torch.compile")
            row["dynamo"] = _dynamo(eager.module, args, options, shapes is not None)
        return
    levels = [("example", {}), *(model.other_sizes() if shapes is not None else ())]
    calls = list(eager.calls(levels))
    step("compiling")
    row["native"] = _outcome(lambda: _native(program, eager, calls, row), row, "native_detail")
    step("exporting to ONNX")
    row["onnx"] = _outcome(lambda: _onnx(program, eager, calls), row, "onnx_detail")


def _first(label: str) -> bool:
    """Whether Ingot goes first: on every other model, since the second finds some caches filled."""
    return zlib.crc32(label.encode()) % 2 == 0


def _captured(capture: Callable[[], Any], row: Record, name: str) -> Any:
    """What it gives, or None where it raises; writes what happened and the processor time."""
    gc.collect()
    torch.manual_seed(0)
    begin = time.process_time()
    try:
        made = capture()
    except Exception as error:
        row[name] = _said(error)
        return None
    row[name], row[f"{name}_seconds"] = "ok", time.process_time() - begin
    return made


def _dynamo(module: nn.Module, args: Sequence[Any], options: dict[str, Any], dynamic: bool) -> str:
    """Whether torch.compile takes the model as one graph."""
    try:
        compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=dynamic)
        with torch.no_grad():
            compiled(*copy.deepcopy(args), **options)
    except Exception as error:
        return _said(error)
    return "ok"


def _said(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    own = "" if isinstance(error, IngotError) else _place(error)
    return f"{type(error).__name__}{own}: {' '.join(line.strip() for line in lines[:4])}"[:600]


def _place(error: BaseException) -> str:
    """Where in Ingot an error of another kind came from."""
    found, at = "", error.__traceback__
    while at is not None:
        if "/ingot/" in at.tb_frame.f_code.co_filename:
            found = f" at {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        at = at.tb_next
    return found


def _outcome(work: Callable[[], None], row: Record, detail: str) -> str:
    """right, refused (by a named error), narrow (a size that eager runs is refused), wrong or failed."""
    try:
        work()
    except Wrong as error:
        outcome, row[detail] = "wrong", str(error)[:600]
    except _Narrow as error:
        outcome, row[detail] = "narrow", str(error)[:600]
    except IngotError as error:
        outcome, row[detail] = "refused", _said(error)
    except Exception as error:
        outcome, row[detail] = "failed", _said(error)
    else:
        outcome = "right"
    return outcome


class _Narrow(Exception):
    """A size at which eager runs is refused."""


# ---------------------------------------------------------------------- eager


class _Eager:
    """The model in eager, in its own precision and in float64."""

    def __init__(self, model: Model) -> None:
        self.model, self.module = model, model.module()
        try:
            self.wide: Callable[..., Any] | None = in_double(self.module)
        except Exception:  # cannot be copied: held to eager alone
            self.wide = None

    def at(self, sizes: dict[str, int]) -> Any:
        torch.manual_seed(0)
        with torch.no_grad():
            return self.module(*self.model.args(sizes), **self.model.options)

    def exact(self, sizes: dict[str, int]) -> Any | None:
        if self.wide is None:
            return None
        try:
            return self.wide(*self.model.args(sizes), **self.model.options)
        except Exception:  # names float32 in a way that the mode does not see
            self.wide = None
            return None

    def calls(self, levels: Sequence[tuple[str, dict[str, int]]]) -> Iterator[tuple[str, dict[str, int], Any]]:
        """The sizes at which eager runs, with its results: together, or one name after the other where it raises."""
        for label, sizes in levels:
            for some in (sizes, *({name: size} for name, size in sizes.items() if len(sizes) > 1)):
                try:
                    result = self.at(some)
                except Exception:
                    continue
                yield f"{label} {some or ''}".strip(), some, result
                if some is sizes:
                    break

    def ratio(self, got: Any, single: Any, sizes: dict[str, int], label: str) -> float:
        """The error in units of eager's own; of several draws of eager's where one was not enough."""
        with contextlib.suppress(Wrong):
            return worst_ratio(got, single, None, label)  # a few roundings from eager: no need for float64
        exact = self.exact(sizes)
        try:
            return worst_ratio(got, single, exact, label)
        except Wrong:
            if self.wide is None:
                raise
            return worst_ratio(got, single, exact, label, own=self._own_errors(sizes))

    def _own_errors(self, sizes: dict[str, int]) -> list[float]:
        inputs = {f"x{number}": value for number, value in enumerate(self.model.args(sizes))}
        wide = self.wide
        assert wide is not None

        class Named(nn.Module):
            def __init__(self, call: Callable[..., Any], options: Any) -> None:
                super().__init__()
                self.call, self.options = [call], options

            def forward(self, **named: Any) -> Any:
                return self.call[0](*named.values(), **self.options)

        single, double = Named(self.module, self.model.options), Named(wide, self.model.options)
        return own_errors(single, double, inputs)


# ---------------------------------------------------------------------- native code and ONNX


def _native(program: Program, eager: _Eager, calls: Sequence[Any], row: Record) -> None:
    begin = time.process_time()
    with quick_compiler():
        compiled = ingot.compile(program)
    row["compile_seconds"] = time.process_time() - begin
    try:
        row["native_ratio"] = _compare(lambda args, options: compiled(*args, **options), compiled.draws, eager, calls)
        row["sizes"], row["random"] = len(calls), compiled.draws
    finally:
        compiled.close()


def _onnx(program: Program, eager: _Eager, calls: Sequence[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        report = export_onnx(program, path, verify=False)
        check_file(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        def call(args: Any, options: Any) -> Any:
            return _called(session, program, check_call(program, args, options))

        _compare(call, report.random, eager, calls)


def _compare(call: Callable[[Any, Any], Any], random: bool, eager: _Eager, calls: Sequence[Any]) -> float:
    worst, refused = 0.0, []
    for label, sizes, single in calls:
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                got = call(eager.model.args(sizes), dict(eager.model.options))
        except InputError as error:
            refused.append(f"{label}: {_said(error)}")
            continue
        if not random:
            worst = max(worst, eager.ratio(got, single, sizes, f"at {label}"))
    if refused:
        raise _Narrow("; ".join(refused))
    return worst


def _called(session: onnxruntime.InferenceSession, program: Program, leaves: Sequence[Any]) -> Any:
    """The user's result, of the arguments' leaves."""
    pairs = zip(leaves, program.signature.user_inputs, strict=True)
    given = [leaf for leaf, one in pairs if one.kind is InputKind.ARGUMENT]
    arrays = [leaf.numpy() if isinstance(leaf, torch.Tensor) else np.array(leaf) for leaf in given]
    names = [one.name for one in session.get_inputs()]
    found = iter(session.run(None, dict(zip(names, arrays, strict=True))))
    results = [
        torch.from_numpy(np.asarray(next(found))) if output.name else output.value
        for output in program.signature.user_outputs
    ]
    return pytree.unflatten(results, program.signature.out_tree)


@contextlib.contextmanager
def warmed_up() -> Iterator[None]:
    """Both captures have run once, so that neither pays for imports and caches."""
    small, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4)), torch.randn(2, 3)
    shapes = ({0: torch.export.Dim("batch")},)
    ingot.capture(small, (x,), dynamic_shapes=shapes)
    torch.export.export(small, (x,), dynamic_shapes=shapes, strict=False)
    yield
