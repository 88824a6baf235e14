"""check="numerics" of schedules: faults put into scheduling on purpose, each of which is seen and laid at its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.errors import ScheduleError
from ingot.lowering.dependence import History, reads_and_writes
from ingot.lowering.index_expr import Expr, coefficient_of, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import Body, Gemm, Load, LoopNest, Map, Op, Reduce, Stmt
from ingot.lowering.loop_module import Module
from ingot.scheduling import buffer_planning, fusion, loop_collapse
from ingot.targets.cpu.schedule import horizontal_fusion, partial_sort, pipeline
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm, StripMined, TiledConvolution
from ingot.targets.cpu.target import CPU
from ingot.targets.reference.schedule_check import ScheduleCheck, compare_arrays, schedule_checked
from tests.support.int8_layers import Residual, layer
from tests.support.kernel_models import Inverted
from tests.support.pipeline_fixtures import lowered

X = torch.Tensor
Rewrite = Callable[[Stmt], Stmt]


def x(*shape: int, seed: int = 0) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- models


class Products(nn.Module):
    """Two products of the same rows; what the second one's epilogue reads of the first lies elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(16, 24)

    def forward(self, a: X) -> X:
        first = self.a(a)
        return torch.relu(self.b(a)) + first.flip(0)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, a: X) -> X:
        made = self.linear(a)
        self.seen.add_(a.sum(0))
        return torch.relu(made) + self.seen


class Chained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, a: X) -> X:
        first = self.a(a)
        return self.c(torch.relu(self.b(first))) + first


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, a: X) -> X:
        a.copy_(self.linear(a))
        return a.sum()


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(40)

    def forward(self, a: X) -> X:
        return self.norm(a.exp()) + 1


def shift(a: X) -> X:
    """Reads a neighbour, and nothing where there is none."""
    return F.pad(a, (1, 0))[:, :-1] * 2 + a


def flip(a: X) -> X:
    b = torch.exp(a)
    return b + b.flip(0)


def transpose(a: X) -> X:
    return (a * 2).transpose(1, 2).contiguous() + 1


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[X, ...]]]] = {
    "products": (Products, lambda: (x(20, 16),)),
    "counting": (Counting, lambda: (x(5, 6),)),
    "replacing": (Replacing, lambda: (x(9, 16),)),
    "residual": (Chained, lambda: (x(9, 16),)),
    "normalized": (Normalized, lambda: (x(3, 40),)),
    "shift": (lambda: shift, lambda: (x(3, 11),)),
    "flip": (lambda: flip, lambda: (x(6, 5),)),
    "transpose": (lambda: transpose, lambda: (x(2, 48, 35),)),
    "topk": (lambda: lambda a: a.topk(3).values, lambda: (x(4, 30),)),
    "strips": (Inverted, lambda: (x(1, 16, 56, 56),)),
    "pair": (
        lambda: Residual(layer(24, 80, 1), layer(40, 80, 1), (1.0, 100)),
        lambda: (x(2, 24, 9, 9), x(2, 40, 9, 9)),
    ),
}


# ---------------------------------------------------------------------- faults


def change_steps(change: Rewrite) -> Callable[[Module], Module]:
    return lambda module: replace(module, steps=tuple(map(change, module.steps)))


def behind(name: str, change: Callable[[Module], Module]) -> Callable[[pytest.MonkeyPatch], None]:
    """Puts a fault behind the last pass of this name."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        names = [one for one, _ in pipeline.SCHEDULE]
        last = len(names) - 1 - names[::-1].index(name)
        wrong = list(pipeline.SCHEDULE)
        run = wrong[last][1]
        wrong[last] = (name, lambda module: change(run(module)))
        patch.setattr(pipeline, "SCHEDULE", tuple(wrong))

    return inject


def drop_state_write(module: Module) -> Module:
    def drop(step: Stmt) -> Stmt:
        if not isinstance(step, Map):
            return step
        kept = tuple(store for store in step.stores if module.buffers[store.buffer].kind != "state")
        return replace(step, stores=kept)

    return change_steps(drop)(module)


def drop_first(module: Module) -> Module:
    return replace(module, steps=module.steps[1:])


def swap_extents(step: Stmt) -> Stmt:
    if not isinstance(step, Map) or len(step.loops) < 2:
        return step
    first, second, *rest = step.loops
    return replace(step, loops=(replace(first, extent=second.extent), replace(second, extent=first.extent), *rest))


def shorten_loop(step: Stmt) -> Stmt:
    if not isinstance(step, Map) or not step.loops:
        return step
    *rest, last = step.loops
    return replace(step, loops=(*rest, replace(last, extent=last.extent - 1)))


def change_kind(step: Stmt) -> Stmt:
    if isinstance(step, LoopNest):
        return replace(step, steps=tuple(change_kind(inner) for inner in step.steps))  # type: ignore[misc]
    if isinstance(step, Reduce):
        return replace(step, kinds=tuple("max" if kind == "sum" else kind for kind in step.kinds))
    return step


def change_body(change: Callable[[Op, BodyBuilder], int | None]) -> Rewrite:
    def apply(step: Stmt) -> Stmt:
        if not isinstance(step, Map):
            return step
        ops, results = rewrite(step.body, replace=lambda op, operands, ops: change(op, ops))
        return replace(step, body=ops.finish(results))

    return apply


def drop_mask(op: Op, ops: BodyBuilder) -> int | None:
    if isinstance(op.attribute, Load) and op.attribute.mask is not None:
        return ops.emit("load", (), op.dtype, Load(op.attribute.buffer, op.attribute.index))
    return None


def unflip(op: Op, ops: BodyBuilder) -> int | None:
    """Reads each element in place of its mirror image."""
    if not isinstance(op.attribute, Load) or not isinstance(op.attribute.index, Expr):
        return None
    index = op.attribute.index
    for one in index.symbols:
        by = coefficient_of(index, one.name)
        if isinstance(by, int) and by < 0 and isinstance(one.below, int):
            mirror = {one.name: one.below - 1 - symbol(one.name, below=one.below)}
            return ops.emit("load", (), op.dtype, Load(op.attribute.buffer, substitute(index, mirror)))
    return None


def drop_second_sum(step: Stmt) -> Stmt:
    if not isinstance(step, DualGemm):
        return step
    first, second = step.steps

    def zero(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        return ops.const(0, op.dtype) if op.name == "second_accumulator" else None

    ops, results = rewrite(first.epilogue.body, replace=zero)
    epilogue = replace(first.epilogue, body=ops.finish(results))
    return replace(step, steps=(replace(first, epilogue=epilogue), second))


def lose_a_line(step: Stmt) -> Stmt:
    if not isinstance(step, StripMined):
        return step
    *grids, (lines, columns) = step.grids
    return replace(step, grids=(*grids, (lines - 1, columns)))


def narrow_window(step: Stmt) -> Stmt:
    """The middle step of a strip says that it reads fewer lines than it does."""
    if not isinstance(step, StripMined):
        return step
    stages = [
        replace(stage, kernel=(1, 3), weight=stage.weight) if isinstance(stage, TiledConvolution) else stage
        for stage in step.steps
    ]
    return replace(step, steps=tuple(stages))


def change_width(step: Stmt) -> Stmt:
    return replace(step, b=replace(step.b, width=16)) if isinstance(step, PackedGemm) else step


def write_to_operand(step: Stmt) -> Stmt:
    """The product's result goes where its rows are."""
    if not isinstance(step, PackedGemm):
        return step
    stores = (*step.epilogue.stores, replace(step.epilogue.stores[0], buffer=step.a.buffer))
    return step.replace_epilogue(replace(step.epilogue, stores=stores))


@dataclass(frozen=True)
class Mutant:
    model: str
    step: str
    inject: Callable[[pytest.MonkeyPatch], None]
    says: str = ""


def patched(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


MUTANTS = {
    "a step is dropped": Mutant("products", "dead_steps", behind("dead_steps", drop_first), "no step before it writes"),
    "a write to a state is dropped": Mutant(
        "counting", "map_fusion", behind("map_fusion", drop_state_write), "differs"
    ),
    "too few of a row are sorted": Mutant(
        "topk", "partial_sort", patched(partial_sort, "_last_place", lambda index, length: 1), "nan or infinite"
    ),
    "an epilogue goes past a writer": Mutant(
        "counting", "epilogue_fusion", patched(History, "may_follow", lambda self, step, place: True)
    ),
    "fusion reads another place": Mutant(
        "flip", "map_fusion", behind("map_fusion", change_steps(change_body(unflip))), "differs by up to"
    ),
    "a mask is dropped": Mutant(
        "shift", "map_fusion", behind("map_fusion", change_steps(change_body(drop_mask))), "is outside its 33 elements"
    ),
    "an epilogue overwrites its operand": Mutant(
        "replacing", "epilogue_fusion", behind("epilogue_fusion", change_steps(write_to_operand)), "which it reads"
    ),
    "a reduction is of another kind": Mutant(
        "normalized", "row_fusion", behind("row_fusion", change_steps(change_kind))
    ),
    "loops are collapsed that memory tells apart": Mutant(
        "transpose", "loop_collapse", patched(loop_collapse, "_one", lambda index, first, second: True)
    ),
    "extents are swapped": Mutant("transpose", "loop_order", behind("loop_order", change_steps(swap_extents))),
    "a loop ends early": Mutant(
        "transpose", "loop_order", behind("loop_order", change_steps(shorten_loop)), "nan or infinite"
    ),
    "a strip loses a line": Mutant("strips", "strips", behind("strips", change_steps(lose_a_line)), "pixels of a grid"),
    "a strip reads too few lines": Mutant("strips", "strips", behind("strips", change_steps(narrow_window))),
    "a pair drops its second sum": Mutant("pair", "pairs", behind("pairs", change_steps(drop_second_sum)), "differ"),
    "a sibling reads elsewhere": Mutant(
        "products", "siblings", patched(horizontal_fusion, "_belongs", lambda step, family: True), "nan or infinite"
    ),
    "panels of another width": Mutant(
        "products", "strips", behind("strips", change_steps(change_width)), "differs by up to"
    ),
    "buffers overlap in the arena": Mutant(
        "residual", "buffer_planning", patched(buffer_planning._Overlaps, "find", lambda self, span: [])
    ),
    "a life ends too early": Mutant(
        "residual",
        "buffer_planning",
        patched(buffer_planning, "live_ranges", lambda module: _shorten(module)),
    ),
}


def _shorten(module: Module) -> dict[str, tuple[int, int]]:
    """Every temporary lives for the step that writes it alone."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(module.steps):
        for name in reads_and_writes(step)[1]:
            if module.buffers[name].kind == "temporary":
                found.setdefault(name, (number, number))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_without_a_fault_every_step_is_right(model: str) -> None:
    make, args = MODELS[model]
    torch.manual_seed(0)
    made = make()
    program, module = lowered(made.eval() if isinstance(made, nn.Module) else made, args(), fused=False)
    schedule_checked(CPU, program, module)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_laid_at_its_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    make, args = MODELS[mutant.model]
    torch.manual_seed(0)
    made = make()
    program, module = lowered(made.eval() if isinstance(made, nn.Module) else made, args(), fused=False)
    mutant.inject(monkeypatch)
    with pytest.raises(ScheduleError) as caught:
        schedule_checked(CPU, program, module)
    said = str(caught.value)
    assert f"{mutant.step!r}" in said.splitlines()[0], said
    assert mutant.says in said, said
    assert ("disable_passes" in said) == (mutant.step != "buffer_planning")  # which cannot be left out


def test_the_error_names_output_difference_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    behind("row_fusion", change_steps(change_kind))(monkeypatch)
    with pytest.raises(ScheduleError) as caught:
        ingot.compile(Normalized().eval(), (x(3, 40),), check="numerics")
    said = str(caught.value)
    assert "The scheduling step 'row_fusion' changed what the module computes." in said
    assert "differs by up to" in said and "the largest value is" in said
    assert "LoopNest (" in said and "test_schedule_check.py:" in said
    assert "disable_passes={'row_fusion'}" in said


def test_a_pass_that_is_left_out_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    behind("row_fusion", change_steps(change_kind))(monkeypatch)
    model, given = Normalized().eval(), x(3, 40)
    compiled = ingot.compile(model, (given,), check="numerics", disable_passes={"row_fusion"})
    torch.testing.assert_close(compiled(given), model(given))
    compiled.close()


def test_a_wrong_lowering_is_not_laid_at_a_pass() -> None:
    program, module = lowered(lambda a: a.sin() * 2, (x(3, 5),), fused=False)
    (step,) = module.steps
    assert isinstance(step, Map)
    ops = tuple(replace(op, name="cos") if op.name == "sin" else op for op in step.body.ops)
    wrong = replace(module, steps=(replace(step, body=Body(ops, step.body.results)),))
    with pytest.raises(ScheduleError, match="does not compute what its program does") as caught:
        schedule_checked(CPU, program, wrong)
    assert "torch returns something else: mul" in str(caught.value)


def test_without_example_inputs_there_is_nothing_to_check() -> None:
    program, _ = lowered(lambda a: a + 1, (x(3),))
    program.example_inputs = None
    with pytest.raises(ScheduleError, match="has no example inputs"):
        ScheduleCheck(CPU, program)


def test_check_takes_known_words_alone() -> None:
    with pytest.raises(ValueError, match="check is 'all'"):
        ingot.compile(nn.ReLU(), (x(3),), check="all")  # type: ignore[call-overload]


def test_random_numbers_are_compared_among_modules() -> None:
    program, module = lowered(lambda a: F.dropout(a, 0.5, True) + torch.randn(4, 6), (x(4, 6),), fused=False)
    assert module.draws
    schedule_checked(CPU, program, module)


def test_arrays() -> None:
    one = torch.linspace(-1, 1, 7).numpy()
    assert compare_arrays(one, one.copy(), 0.0) is None
    other = one.copy()
    other[2] += 1e-3
    assert compare_arrays(one, other, 1e-2) is None
    assert "differs by up to 0.001" in str(compare_arrays(one, other, 1e-5))
    other[3] = float("nan")
    assert "1 of 7 elements that are nan" in str(compare_arrays(one, other, 1.0))
    assert "1 of 3 elements" in str(compare_arrays(*(torch.tensor([1, 2, n]).numpy() for n in (3, 4)), 1.0))
    assert "7 elements, not 5" in str(compare_arrays(one[:5], one, 1.0))
    assert "one of the two alone" in str(compare_arrays(None, one, 1.0))


def test_the_last_fusion_pass_is_one_that_the_schedule_has() -> None:
    """Faults are put behind passes by name: a name that goes away would make a mutant vanish."""
    names = {name for name, _ in pipeline.SCHEDULE} | {"buffer_planning"}
    assert {mutant.step for mutant in MUTANTS.values()} <= names
    assert {name for name, _ in fusion.fusion_passes(pipeline.FUSION_LIMITS)} <= names


def test_both_halves_of_a_model_that_trains_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = Chained(), x(9, 16)
    trained = ingot.compile(model, (given,), training=True, check="numerics")
    torch.testing.assert_close(trained(given), model(given))
    behind("siblings", change_steps(lambda step: replace(step, k=1) if isinstance(step, Gemm) else step))(monkeypatch)
    with pytest.raises(ScheduleError, match="'siblings'"):
        ingot.compile(model, (given,), training=True, check="numerics")(given)
