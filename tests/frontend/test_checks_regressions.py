"""A run-time check of the model is made by every form that the model takes, where it stands, with its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
import ingot_runtime
from ingot import passes
from ingot.errors import AssertionFailed, DataDependentError, UntraceableError
from ingot.ir import symbolic_dims
from tests.frontend import checked_models
from tests.frontend.checked_models import CASES, Arguments, Case, Either, Model, Modulo


def transformed(program: ingot.Program, *names: str) -> ingot.Program:
    return ingot.transform(program, [getattr(passes, name) for name in names])


def reloaded(program: ingot.Program, folder: Path) -> ingot.Program:
    program.save(folder / "program.ingot")
    return ingot.load(folder / "program.ingot")  # type: ignore[return-value]


FORMS: dict[str, Callable[[ingot.Program, Path], Callable[..., Any]]] = {
    "program": lambda program, folder: program,
    "loaded": reloaded,
    "exported": lambda program, folder: program.to_exported().module(),
    "imported": lambda program, folder: ingot.from_exported(program.to_exported()),
    "module": lambda program, folder: program.module(),
    "unflattened": lambda program, folder: program.unflatten(),
    "functional": lambda program, folder: transformed(program, "functionalize", "dce", "cse"),
    "core": lambda program, folder: transformed(program, "functionalize", "decompose", "dce", "cse"),
    "insert_effect_tokens": lambda program, folder: transformed(
        program, "insert_effect_tokens", "functionalize", "decompose"
    ),
    "core, loaded": lambda program, folder: reloaded(transformed(program, "functionalize", "decompose"), folder),
}


def captured(case: Case) -> ingot.Program:
    model = case.function if case.dynamic_shapes else Model(case.function)
    return ingot.capture(model, copied(case.passing[0]), dynamic_shapes=case.dynamic_shapes)


def copied(arguments: Arguments) -> Arguments:
    return tuple(value.clone() for value in arguments)


def check_form(case: Case, form: Callable[..., Any], where: str = "") -> None:
    for arguments in case.passing:
        form(*copied(arguments))
    for arguments, message in case.failing:
        with pytest.raises((AssertionFailed, RuntimeError, ingot_runtime.AssertionFailed)) as caught:
            form(*copied(arguments))
        assert message in str(caught.value)
        if where:
            assert where in str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_form_of_a_program_checks(case: Case, tmp_path: Path) -> None:
    program = captured(case)
    for name, make in FORMS.items():
        check_form(case, make(program, tmp_path), "" if name == "exported" else str(checked_models.__file__))


@pytest.mark.parametrize("case", [c for c in CASES if c.native], ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_native_code_checks(case: Case, tmp_path: Path) -> None:
    program = captured(case)
    compiled = ingot.compile(program)
    check_form(case, compiled, str(checked_models.__file__))
    compiled.save(tmp_path / "compiled.ingot")
    loaded = ingot_runtime.load(tmp_path / "compiled.ingot")
    check_form(case, lambda *arguments: loaded(*(a.numpy() for a in arguments)), str(checked_models.__file__))


@pytest.mark.parametrize("name", ["equal_to_number", "equal_to_size", "assert_tensor", "size_in_branch"])
def test_a_loaded_program_compiles_with_its_checks(name: str, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == name)
    check_form(case, ingot.compile(reloaded(captured(case), tmp_path)), str(checked_models.__file__))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_onnx_export_says_which_checks_it_drops(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    report = ingot.export_onnx(captured(case), tmp_path / "model.onnx", verify=False)
    for _, message in case.failing:
        assert any(message in said and str(checked_models.__file__) in said for said in report.dropped_assertions)


def test_each_check_is_written_once() -> None:
    program = captured(next(c for c in CASES if c.name == "earlier_symbol"))
    written = [n.args[1] for n in program.graph.nodes if n.target is torch.ops.aten._assert_scalar.default]
    assert written == ["first", "second", "third"]


def test_a_disjunction_is_not_taken_for_its_first_part() -> None:
    with pytest.raises(DataDependentError):
        ingot.capture(Either(), (checked_models.ints(6, 1),))


def test_a_check_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check in an operation that a Program has no node for must not vanish."""
    monkeypatch.delitem(symbolic_dims._NAMES, torch.utils._sympy.functions.PythonMod, raising=False)
    monkeypatch.delitem(symbolic_dims._NAMES, torch.utils._sympy.functions.Mod, raising=False)

    with pytest.raises(UntraceableError, match="computed in a way"):
        ingot.capture(Modulo(), (checked_models.ints(3, 1),))
