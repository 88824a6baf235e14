"""The verifier of modules: what scheduling may leave behind, and who is blamed for what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ingot.errors import ScheduleError, UnsupportedOperator
from ingot.lowering.loop_ir import Body, Load, LoopNest, Map, Stmt, Store
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule import pipeline as schedules
from ingot.targets.cpu.schedule.pipeline import SCHEDULE, schedule
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm
from ingot.targets.cpu.schedule.verifier import verify_schedule
from ingot.targets.cpu.target import CPU
from tests.support.kernel_models import CASES, model_of
from tests.support.pipeline_fixtures import lowered
from tests.support.source_hashes import everything


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        return self.norm(self.b(y) + y)


def chain(fused: bool = True) -> Module:
    return lowered(Chain().eval(), (torch.randn(9, 16),), fused=fused)[1]


def broken(module: Module, steps: tuple[Stmt, ...]) -> str:
    with pytest.raises(ScheduleError) as caught:
        verify_schedule(replace(module, steps=steps), "map_fusion")
    assert "'map_fusion'" in str(caught.value)
    return str(caught.value)


def test_modules_are_well_formed_before_and_after_scheduling() -> None:
    verify_schedule(chain(fused=False), "lower")
    verify_schedule(chain(), "siblings")


def test_a_step_that_is_dropped_is_missed_by_its_readers() -> None:
    module = chain()
    assert isinstance(module.steps[0], PackedGemm)
    said = broken(module, module.steps[1:])
    assert "no step before it writes" in said and "test_loop_ir_verifier.py" in said


def test_steps_in_another_order() -> None:
    module = chain()
    assert "no step before it writes" in broken(module, module.steps[::-1])


def test_an_output_that_is_never_written() -> None:
    module = chain()
    assert "is never written" in broken(module, module.steps[:-1])


def test_a_local_buffer_that_another_step_uses() -> None:
    module = chain()
    nest = next(step for step in module.steps if isinstance(step, LoopNest))
    (product, *_) = module.steps
    assert isinstance(product, PackedGemm)
    moved = replace(nest, local=(*nest.local, product.epilogue.stores[0].buffer))
    steps = tuple(moved if step is nest else step for step in module.steps)
    assert "is local to it" in broken(module, steps)


def test_bodies() -> None:
    module = lowered(lambda a: torch.sin(a) + 1, (torch.randn(3, 5),))[1]
    (step,) = module.steps
    assert isinstance(step, Map)
    assert "nothing gives i0 a value" in broken(module, (replace(step, loops=()),))
    assert "it stores result 3, of 1" in broken(module, (replace(step, stores=(replace(step.stores[0], result=3),)),))
    ops = step.body.ops
    assert "which is not before it" in broken(module, (replace(step, body=Body(ops[::-1], step.body.results)),))
    stray = replace(step, stores=(*step.stores, Store("nowhere", 0, 0)))
    assert "there is no such buffer" in broken(module, (stray,))


def test_a_pair_whose_second_step_stores() -> None:
    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(48, 64)

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(z)

    module = lowered(Meeting().eval(), (torch.randn(9, 32), torch.randn(9, 48)))[1]
    (pair,) = module.steps
    assert isinstance(pair, DualGemm)
    first, second = pair.steps
    assert "stores of its own" in broken(
        module, (replace(pair, steps=(first, replace(second, epilogue=first.epilogue))),)
    )


def test_the_faulty_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_first(module: Module) -> Module:
        return replace(module, steps=module.steps[1:])

    faulty = tuple((name, drop_first if name == "strips" else run) for name, run in SCHEDULE)
    monkeypatch.setattr(schedules, "SCHEDULE", faulty)
    module = chain(fused=False)
    with pytest.raises(ScheduleError, match="scheduling pass 'strips'"):
        schedule(module)
    schedule(module, {"strips"})


def test_everything_is_verified_where_checking_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load outside its buffer is found with `check`, or where the environment asks for it."""

    def shift_loads(module: Module) -> Module:
        steps = []
        for step in module.steps:
            if isinstance(step, PackedGemm):
                ops = [
                    replace(op, attribute=replace(op.attribute, index=op.attribute.index + 1))
                    if isinstance(op.attribute, Load)
                    else op
                    for op in step.epilogue.body.ops
                ]
                step = replace(step, epilogue=replace(step.epilogue, body=replace(step.epilogue.body, ops=tuple(ops))))
            steps.append(step)
        return replace(module, steps=tuple(steps))

    faulty = tuple((name, shift_loads if name == "loop_order" else run) for name, run in SCHEDULE)
    monkeypatch.setattr(schedules, "SCHEDULE", faulty)
    module = chain(fused=False)
    monkeypatch.setenv("INGOT_CHECK", "")
    schedule(module)
    said = "scheduling pass 'loop_order'(.|\n)*which is outside its 16 elements, at i1 = 15"
    with pytest.raises(ScheduleError, match=said):
        schedule(module, verify=True)
    monkeypatch.setenv("INGOT_CHECK", "1")
    with pytest.raises(ScheduleError, match=said):
        schedule(module)


def test_a_pass_that_changes_nothing_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def record(module: Module, after: str, *, full: bool) -> None:
        seen.append(after)

    monkeypatch.setattr(schedules, "verify_schedule", record)
    module = chain(fused=False)
    schedule(module)
    assert seen[0] == "lower" and "row_fusion" in seen
    assert "strips" not in seen and "pairs" not in seen, "there is nothing for them to do"


def test_control_flow() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda a: (a.sin() + 1).cos(), lambda a: a * 2, (x,))
        return y @ y

    def loops(x: torch.Tensor) -> torch.Tensor:
        def more(i: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return i < 3

        def body(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.softmax(a @ a, -1)

        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(more, body, (torch.tensor(0), x))[1]

    for f in (branches, loops):
        _, module = lowered(f, (torch.randn(4, 4),), fused=False)
        verify_schedule(module, "lower")
        schedule(module)


def check_items(prefix: str, every: int) -> int:
    """Schedules items of source_hashes, verifying them in full after each pass; returns how many there were."""
    count = 0
    for number, item in enumerate(everything([prefix])):
        if number % every == 0:
            for program in item.programs():
                disabled = item.options.get("disabled", ())
                try:
                    module = CPU.lower(program, item.options.get("precision", "float32"), disabled)
                except UnsupportedOperator:  # a backward without rules has no loops to verify
                    continue
                schedule(module, disabled, verify=True)
                count += 1
    return count


@pytest.mark.parametrize("name", CASES)
def test_models_of_every_kernel_hold(name: str) -> None:
    case = CASES[name]
    _, module = lowered(model_of(name), case.args(), dynamic_shapes=case.dynamic_shapes, fused=False)
    schedule(module, verify=True)


def test_a_sample_of_models_holds() -> None:
    assert check_items("small", 29) > 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["small:convolution", "small:products", "small:integers", "small:weights", "small:scan"]
)
def test_many_models_hold(part: str) -> None:
    assert check_items(part, 1) > 10


def test_lowering_is_verified_too() -> None:
    import ingot
    from ingot.compiler import run_cpu_pipeline

    module = CPU.lower(run_cpu_pipeline(ingot.capture(Chain().eval(), (torch.randn(9, 16),))))
    with pytest.raises(ScheduleError, match="'lower'"):
        schedule(replace(module, steps=module.steps[1:]))
