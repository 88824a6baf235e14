"""Every script: imported, verified, and equal to the script on five sets of arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ingot
from ingot.ir.outlining import graph_modules
from tests.frontend.torchscript import models, models_dynamic_lists, models_exits, models_loops, models_numbers
from tests.frontend.torchscript.cases import CASES, Case

FILES = (models, models_loops, models_exits, models_numbers, models_dynamic_lists)  # they fill CASES

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


def results(script: Any, method: str, args: tuple[Any, ...]) -> Any:
    return (script if method == "forward" else getattr(script, method))(*copy.deepcopy(args))


def operators(program: ingot.Program) -> set[str]:
    return {str(n.target).rpartition(".")[2] for m in graph_modules(program.graph_module) for n in m.graph.nodes}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_to_the_script(case: Case) -> None:
    script = case.script()
    arguments = case.arguments()
    program = ingot.from_torchscript(
        script, arguments[0], method=case.method, dynamic_shapes=case.dynamic, **case.options
    )
    program.verify()
    assert set(case.keeps) <= operators(program)
    before = case.script()  # the same weights, and state that no other call has touched
    for args in arguments:
        wanted = results(before, case.method, args)
        got = program(*copy.deepcopy(args))
        torch.testing.assert_close(got, wanted, rtol=0, atol=case.within, equal_nan=True)
