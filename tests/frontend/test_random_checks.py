"""Random models with one to six run-time checks at random places: an input that violates one of them fails at that one.

A model takes eight integers, `BASE`, that pass every check. Check i is about element i, and about element 7 where it
compares two, so that changing element i violates check i alone.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ingot
import ingot_runtime
from ingot.errors import AssertionFailed
from tests.frontend.test_checks_regressions import FORMS

BASE = (11, 12, 13, 14, 15, 16, 17, 10)

# A statement that checks element {i}, whose value in BASE is {v}, and a value that violates it.
_KINDS: tuple[tuple[str, Callable[[int], int]], ...] = (
    ('torch._check(x[{i}].item() > {v} - 3, lambda: "check {i}")', lambda v: v - 5),
    ('torch._check(u{i} < {v} + 3, lambda: "check {i}")', lambda v: v + 5),
    ('torch._check(u{i} == {v}, lambda: "check {i}")', lambda v: v + 1),
    ('torch._check(u{i} != {v} + 2, lambda: "check {i}")', lambda v: v + 2),
    ('torch._check(u{i} > u7, lambda: "check {i}")', lambda v: 3),
    ('torch._check(u{i} * 2 + u7 > {v}, lambda: "check {i}")', lambda v: -9),
    ('torch._check_is_size(u{i}, lambda: "check {i}")', lambda v: -2),
    ('torch._check_value((x[{i}] * 0.5).item() > 2.0, lambda: "check {i}")', lambda v: 1),
    ('torch._check_tensor_all(x[{i} : {i} + 1] > 4, lambda: "check {i}")', lambda v: 0),
    ('torch._assert(x[{i}] > 4, "check {i}")', lambda v: 0),
    ('torch._assert_async(x[{i}] > 4, "check {i}")', lambda v: 0),
    ('torch.ops.aten._assert_scalar(u{i} > 4, "check {i}")', lambda v: 0),
    ('assert u{i} > 4, "check {i}"', lambda v: 0),
    ('assert 4 < u{i} < 100, "check {i}"', lambda v: 200),
    ('assert u{i} > 4 and u{i} != 5, "check {i}"', lambda v: 5),
    ('assert x[{i}] > 4, "check {i}"', lambda v: 0),
)
_FILLERS = ("y = y + 1", "y = y * x", "y = torch.relu(y)", "y = y + u7", "y = y.reshape(2, 4).reshape(8)", "z.add_(1)")
# Lines around a check. Those in a branch run, as the condition holds whatever the elements are.
_PLACES = ("here", "here", "no_grad", "autocast", "submodule", "branch")


class Choice:
    """A random model's text, and for each check the index of its element and a value that violates it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.violations: list[tuple[int, int]] = []
        self._functions: list[str] = []
        lines: list[str] = []
        for i in chance.sample(range(7), chance.randint(1, 6)):
            lines += chance.choices(_FILLERS, k=chance.randint(0, 2))
            form, violate = chance.choice(_KINDS)
            self.violations.append((i, violate(BASE[i])))
            lines += self._placed(form.format(i=i, v=BASE[i]), i, chance.choice(_PLACES))
            if chance.random() < 0.2:
                lines.append(form.format(i=i, v=BASE[i]))  # once more, where it is known to hold
        lines += chance.choices(_FILLERS, k=chance.randint(0, 1))
        lines.append("return " + chance.choice(("y", "x", "(y, z)", "(y, u7 + u0)", "{'y': y}")))
        self.text = _TEXT.format("\n".join(self._functions), "\n".join("        " + line for line in lines))

    def _placed(self, check: str, i: int, place: str) -> list[str]:
        symbol = f"u{i} = x[{i}].item()"
        if place == "no_grad":
            return [symbol, "with torch.no_grad():", "    " + check]
        if place == "autocast":
            return [symbol, 'with torch.autocast("cpu", dtype=torch.bfloat16):', "    " + check]
        if place == "submodule":
            self._functions.append(_PART.format(i, symbol, check))
            return [symbol, f"y = self.part{i}(x, y)"]
        if place == "branch":
            return [
                symbol,
                f"def inside{i}(y):",
                f"    {check}",
                "    return y + 1",
                f"y = torch.cond((x * 0).sum() == 0, inside{i}, lambda y: y * 2, (y,))",
            ]
        return [symbol, check]


_PART = """
class Part{0}(nn.Module):
    def forward(self, x, y):
        u7 = x[7].item()
        {1}
        {2}
        return y + 1
"""
_TEXT = """
import torch
from torch import nn
{0}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in list(globals().items()):
            if name.startswith("Part"):
                self.add_module(name.lower(), value())

    def forward(self, x):
        u0, u7 = x[0].item(), x[7].item()
        y = x + 0
        z = torch.zeros(8, dtype=torch.int64)
{1}
"""


def imported(text: str, folder: Path) -> ModuleType:
    file = folder / "model.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("random_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.cond compiles its branches, and before torch 2.12 it imports their module
    spec.loader.exec_module(module)
    return module


def inputs(choice: Choice) -> list[tuple[str, torch.Tensor]]:
    """The input that passes, under "", and one for each check, under its message."""
    found = [("", torch.tensor(BASE))]
    for i, value in choice.violations:
        x = torch.tensor(BASE)
        x[i] = value
        found.append((f"check {i}", x))
    return found


def check_form(form: Callable[..., Any], choice: Choice, name: str) -> None:
    for message, x in inputs(choice):
        try:
            form(x)
            said = ""
        except (AssertionFailed, RuntimeError, ingot_runtime.AssertionFailed) as failure:
            said = str(failure).splitlines()[0]
        assert said == message, f"{name}: {message or 'nothing'} should fail in\n{choice.text}"


def captured(seed: int, folder: Path) -> tuple[Choice, ingot.Program]:
    choice = Choice(seed)
    model = imported(choice.text, folder).Model()
    for message, x in inputs(choice):  # the generator's own promise; torch.cond compiles, and says it in its own way
        if message and "torch.cond" not in choice.text:
            with pytest.raises((RuntimeError, AssertionError, ValueError), match=rf"{message}\b"):
                model(x)
    return choice, ingot.capture(model, (torch.tensor(BASE),))


def test_an_edited_module(tmp_path: Path) -> None:
    for message in ("first", "the second"):
        model = imported(_TEXT.format("", f'        assert x[0] > 4, "{message}"\n        return y'), tmp_path).Model()
        program = ingot.capture(model, (torch.tensor(BASE),))
        with pytest.raises(AssertionFailed, match=message):
            program(torch.zeros(8, dtype=torch.int64))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_violated_check_is_the_one_that_fails(seed: int, tmp_path: Path) -> None:
    choice, program = captured(seed, tmp_path)
    for name, make in FORMS.items():
        check_form(make(program, tmp_path), choice, name)


@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_violated_check_is_the_one_that_fails_in_native_code(seed: int, tmp_path: Path) -> None:
    choice, program = captured(seed, tmp_path)
    compiled = ingot.compile(program)
    check_form(compiled, choice, "compiled")
    compiled.save(tmp_path / "compiled.ingot")
    loaded = ingot_runtime.load(tmp_path / "compiled.ingot")
    check_form(lambda x: loaded(x.numpy()), choice, "loaded")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_two_hundred_random_models(tmp_path: Path) -> None:
    for seed in range(1000, 1200):
        choice, program = captured(seed, tmp_path)
        for name, make in FORMS.items():
            check_form(make(program, tmp_path), choice, f"{seed}, {name}")
        check_form(ingot.compile(program), choice, f"{seed}, compiled")
