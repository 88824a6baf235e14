"""torch's operator samples as ONNX models: each exported, run in ONNX Runtime, and judged as native code is.

    for case, outcome in run(cases(...)): ...

An Outcome is passed, refused (a named error of Ingot says why), wrong (a number is) or crashed (anything else). Where
ONNX Runtime has no kernel, onnx.reference runs the model. Models run in a child, which may die of one.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator

import ingot
from ingot.onnx.api import run_onnx_pipeline
from ingot.onnx.convert import Exported, convert
from ingot.onnx.verification import _tensor, feeds_of, run_session
from tests.support.operator_samples.batched_compile import Outcome
from tests.support.operator_samples.core_aten import outside
from tests.support.operator_samples.samples import Case, Expectation, expectation, fresh, judge

BATCH = 200
PATIENCE = 60  # seconds of its own work that one model may take


def run(cases: Iterable[Case], *, opset: int | None = None, classify: bool = False) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome, in order. Cases that eager refuses are left out.

    `classify` asks of what is refused whether it reaches core ATen.
    """
    iterator = iter(cases)
    while group := list(islice(iterator, BATCH)):
        yield from _run_forked(group, opset, classify)


def _run_forked(group: Sequence[Case], opset: int | None, classify: bool) -> Iterator[tuple[Case, Outcome]]:
    left = list(range(len(group)))
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            torch.set_num_threads(1)  # torch's own threads did not come along into the child
            try:
                with os.fdopen(writer, "wb") as out:
                    for number in left:
                        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
                        pickle.dump((number, outcome_of(group[number], opset, classify)), out)
                        out.flush()
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as said:
            while left:
                try:
                    number, outcome = pickle.load(said)
                except EOFError:
                    break
                left.remove(number)
                if outcome is not None:
                    yield group[number], outcome
        _, status = os.waitpid(child, 0)
        if left:
            died = os.waitstatus_to_exitcode(status)
            yield group[left.pop(0)], Outcome("crashed", f"running: the process ended with {died}")


def outcome_of(case: Case, opset: int | None = None, classify: bool = False) -> Outcome | None:
    """What becomes of one case; None where eager refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = expectation(case)
        if expected is None:
            return None
        captured = None
        try:
            captured = ingot.capture(case.module, fresh(case))
            exported = convert(run_onnx_pipeline(captured), opset)
        except ingot.IngotError as error:
            foreign = outside(case, captured) if classify else ()
            return Outcome("refused", f"{type(error).__name__}: {error}", foreign)
        except Exception as error:
            return Outcome("crashed", f"exporting: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}")
        try:
            complaint = _judged(case, expected, captured, exported)
        except Exception as error:
            return Outcome("wrong", f"running: {type(error).__name__}: {str(error)[:600]}")
    return Outcome("wrong", complaint) if complaint else Outcome("passed")


def _judged(case: Case, expected: Expectation, program: Any, exported: Exported) -> str | None:
    proto = ir.to_proto(exported.model)
    onnx.checker.check_model(proto, full_check=True)
    names = [i.name for i in program.signature.user_inputs]
    arguments = dict(zip(names, fresh(case), strict=True))
    feeds = feeds_of(exported, arguments)
    if exported.draws:
        expected = Expectation(expected.own, expected.exact, True)
    results = [kind for _, kind, _ in exported.outputs].count("result")
    complaint = None
    try:
        found = run_session(proto.SerializeToString(), feeds)[:results]
        complaint = judge(case, expected, [_tensor(value) for value in found])
        if complaint is None:
            return None
    except Exception as error:
        complaint = f"{type(error).__name__}: {str(error)[:300]}"
    try:
        reference = ReferenceEvaluator(proto).run(None, {name: np.asarray(value) for name, value in feeds.items()})
        second = judge(case, expected, [_tensor(value) for value in reference[:results]])
    except Exception as error:
        second = f"{type(error).__name__}: {str(error)[:300]}"
    return None if second is None else f"ONNX Runtime: {complaint}; onnx.reference: {second}"
