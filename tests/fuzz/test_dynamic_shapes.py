"""The generator of dynamic-shape programs: some fixed programs are right, and its oracle can say that one is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import ingot
from tests.fuzz import dynamic_shapes
from tests.fuzz.dynamic_shapes_native import compile_parts, lower_part, run_part


def test_programs_depend_on_the_seed_alone() -> None:
    assert str(dynamic_shapes.make(7)) == str(dynamic_shapes.make(7))
    assert len({str(dynamic_shapes.make(seed)).split("\n", 1)[1] for seed in range(20)}) > 15


def test_some_programs() -> None:
    verdicts = dict(dynamic_shapes.check(list(range(16))))
    wrong = [verdict.reason for verdict in verdicts.values() if verdict.kind == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict.kind == "right" for verdict in verdicts.values()) > 8


def test_bad_indices_of_an_empty_tensor_touch_nothing(tmp_path: Path) -> None:
    """torch gives no address for a tensor without elements, so that a read or write of place 0 ends the process."""

    class Model(nn.Module):
        def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self.function(a)

    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda a: a[torch.tensor([0, 3])].sum(),
        lambda a: a.gather(0, torch.tensor([[3, 0]])).sum(),
        lambda a: a.index_put((torch.tensor([0, 3]),), torch.ones(2, 2)),
        lambda a: a.scatter(0, torch.tensor([[3, 0]]), 2.0),
        lambda a: a.scatter_add(0, torch.tensor([[3, 0]]), torch.ones(1, 2)),
    ]
    shapes = {"a": {0: Dim("n", min=0, max=9)}}
    parts = [lower_part(ingot.capture(Model(f), (torch.randn(5, 2),), dynamic_shapes=shapes)) for f in functions]
    compile_parts(parts, tmp_path)
    for part in parts:
        for size in (0, 3):
            message = run_part(part, [torch.randn(size, 2)])
            valid = rf"valid: -{size} to {size - 1}" if size else "a dim without elements"
            assert isinstance(message, str) and re.search(
                rf"index \d is out of range for .*({valid}|valid: 0 to)", message
            )
        assert not isinstance(run_part(part, [torch.randn(4, 2)]), str)


def test_only_indices_of_what_nothing_reads_are_excused() -> None:
    program = dynamic_shapes.Program(0, inputs={"a": [5]}, outputs=["v2"])
    program.lines = ["v0 = a[torch.tensor([9])]", "v1 = v0 + a", "v2 = torch.zeros(v1.shape[0]) + a"]
    assert [program.reads_values_of(line) for line in (2, 3, 4)] == [False, False, True]
    program.outputs = ["v1"]
    assert [program.reads_values_of(line) for line in (2, 3, 4)] == [True, True, False]
    for outputs, excused in ((["v2"], True), (["v1"], False)):
        program.outputs = outputs
        try:
            program.function()(torch.randn(5))
        except IndexError as failure:
            assert dynamic_shapes.reads_all(program, failure, [torch.randn(5)], [torch.randn(5)]) is not excused
            assert not dynamic_shapes.reads_all(program, failure, [torch.randn(0)], [torch.randn(5)])
        else:
            raise AssertionError("eager should have raised")


def test_what_is_read_by_way_of_nothing_is_not_read() -> None:
    program = dynamic_shapes.Program(0, inputs={"a": [5]}, outputs=["v2"])
    program.lines = ["v0 = a[torch.tensor([9, 9])]", "v1 = v0[a.shape[0]:]", "v2 = v1.sum()"]
    for size, read in ((5, False), (1, True)):
        given = [torch.randn(size)]
        try:
            program.function()(*given)
        except IndexError as failure:
            assert dynamic_shapes.reads_all(program, failure, [torch.zeros(())], given) is read
        else:
            raise AssertionError("eager should have raised")


def test_the_oracle_sees_what_differs() -> None:
    x = torch.randn(3)
    wide = x.double()
    assert not dynamic_shapes.compare([x], [wide], [x.clone()])
    for other in (x + 1e-2, x[:2], x.double(), torch.where(x > x.min(), x, torch.nan)):
        assert dynamic_shapes.compare([x], [wide], [other])
