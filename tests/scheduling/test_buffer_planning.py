"""The plan of the arena: what is alive together never overlaps, and what is not may share."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, evaluate, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Body, Buffer, For, If, Loop, Map, Stmt, Store
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import ALIGN, MemoryPlan, byte_size, live_ranges, plan

N = symbol("n0")


def step(reads: list[str], writes: list[str]) -> Map:
    ops = BodyBuilder()
    values = [ops.load(name, 0, "float32") for name in reads] or [ops.const(0.0, "float32")]
    body = ops.finish(values[:1]) if len(values) == 1 else Body(tuple(ops.ops), tuple(values))
    return Map((Loop("i0", 4),), body, tuple(Store(name, 0, 0) for name in writes))


def module(buffers: dict[str, Buffer], steps: list[Stmt]) -> Module:
    return Module(buffers, tuple(steps), (), (), (), {}, {"n0": 8})


@st.composite
def modules(draw: st.DrawFn, dynamic: bool) -> Module:
    buffers: dict[str, Buffer] = {}
    steps: list[Stmt] = []
    for number in range(draw(st.integers(1, 14))):
        size: Size = draw(st.integers(0, 300))
        if dynamic and draw(st.booleans()):
            size = size * N + draw(st.integers(0, 5))
        dtype = draw(st.sampled_from(["float32", "bool", "float64"]))
        known = sorted(buffers)
        reads = draw(st.lists(st.sampled_from(known), max_size=3)) if known else []
        buffers[f"t{number}"] = Buffer(f"t{number}", dtype, (size,))
        made: Stmt = step(reads, [f"t{number}"])
        match draw(st.sampled_from(["plain", "plain", "plain", "if", "repeat"])):
            case "if":
                made = If(Body((), ()), (made,), ())
            case "repeat":
                made = For(Loop("n9", 3), (made,))
        steps.append(made)
    if dynamic:
        buffers["dynamic"] = Buffer("dynamic", "float32", (N,))
        steps.append(step([], ["dynamic"]))
    return module(buffers, steps)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(modules(dynamic=False))
def test_buffers_that_live_together_never_overlap(made: Module) -> None:
    found, spans = plan(made), live_ranges(made)
    assert not found.dynamic
    assert set(found.offsets) == set(made.buffers)
    places = {}
    for name, buffer in made.buffers.items():
        begin = found.offsets[name]
        size = evaluate(byte_size(buffer), {})
        assert begin % ALIGN == 0 and begin + size <= found.size
        places[name] = (begin, begin + max(size, 1))
    for a in places:
        for b in places:
            together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
            apart = places[a][1] <= places[b][0] or places[b][1] <= places[a][0]
            assert a == b or not together or apart, (a, b)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(modules(dynamic=True))
def test_dynamic_buffers_share_slots_only_one_after_another(made: Module) -> None:
    found, spans = plan(made), live_ranges(made)
    assert found.dynamic
    assert sorted(name for slot in found.slots for name in slot) == sorted(made.buffers)
    for slot in found.slots:
        ordered = sorted(slot, key=lambda name: spans[name])
        for first, second in pairwise(ordered):
            assert spans[first][1] < spans[second][0], slot


def test_a_chain_needs_two_places() -> None:
    buffers = {f"t{n}": Buffer(f"t{n}", "float32", (256,)) for n in range(6)}
    steps: list[Stmt] = [step([], ["t0"]), *(step([f"t{n}"], [f"t{n + 1}"]) for n in range(5))]
    assert plan(module(buffers, steps)).size == 2 * 256 * BYTES["float32"]
    dynamic = {name: Buffer(name, "float32", (N,)) for name in buffers}
    assert len(plan(module(dynamic, steps)).slots) == 2


def test_what_a_loop_uses_lives_for_the_whole_loop() -> None:
    buffers = {f"t{n}": Buffer(f"t{n}", "float32", (16,)) for n in range(3)}
    steps: list[Stmt] = [
        step([], ["t0"]),
        For(Loop("n9", 4), (step(["t0"], ["t1"]), step(["t1"], ["t2"]))),
    ]
    found = plan(module(buffers, steps))
    assert len(set(found.offsets.values())) == 3


def test_inputs_outputs_and_weights_are_not_in_the_arena() -> None:
    buffers = {kind[0]: Buffer(kind[0], "float32", (16,), kind) for kind in ("input", "output", "weight", "state")}
    assert plan(module(buffers, [step(["i", "w", "s"], ["o"])])) == MemoryPlan({}, 0)
