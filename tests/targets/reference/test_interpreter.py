"""The interpreter against eager: every type of step, every dtype, sizes 0 and 1; and what it refuses to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import AssertionFailed, InputError, InterpreterError
from ingot.lowering import loop_ir
from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Buffer, Loop, LoopNest, Map, StepGroup, Stmt, Store, WithEpilogue
from ingot.lowering.loop_module import Argument, Module
from ingot.lowering.lower import lower
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.target import CPU
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference import interpreter as interpreters
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.target import REFERENCE
from ingot_runtime.errors import DivisionByZero, IndexOutOfRange
from tests.support.kernel_models import CASES, Block, model_of
from tests.support.oracle import in_double, worst_ratio
from tests.support.source_hashes import CONVOLUTIONS, INTEGERS, Chain
from tests.support.weight_only_layers import Coded

X = torch.Tensor


def x(*shape: int, seed: int = 0) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compare(
    model: Any, args: tuple[Any, ...], *others: tuple[Any, ...], tolerance: float = 1e-5, **options: Any
) -> None:
    """Eager, the module that no target chose for, and the CPU's before and after its schedule."""
    program = ingot.capture(model, copy.deepcopy(args), dynamic_shapes=options.get("dynamic_shapes"))
    modules = []
    for target in (REFERENCE, CPU):
        passed = run_cpu_pipeline(program.copy(), (), target)
        lowered = target.lower(passed, options.get("precision", "float32"))
        scheduled = [target.schedule(lowered)] if target is CPU else []
        modules += [InterpretedModel(target, passed, one) for one in (lowered, *scheduled)]
    for call in (args, *others):
        with torch.no_grad():
            expected = copy.deepcopy(model)(*copy.deepcopy(call))
        for interpreted in modules:
            assert_near(interpreted(*copy.deepcopy(call)), expected, tolerance)


def assert_near(ours: Any, theirs: Any, tolerance: float) -> None:
    mine, expected = (torch.utils._pytree.tree_leaves(value) for value in (ours, theirs))
    assert len(mine) == len(expected)
    for one, other in zip(mine, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        largest = float(other.double().abs().nan_to_num(0, 0, 0).max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(largest, 1.0), equal_nan=True)


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("inverted residual", "integers", "bfloat16", "dynamic sizes")]
)
def test_models_that_use_every_kind_of_kernel(name: str) -> None:
    case = CASES[name]
    exact = "integers" not in name and "coded" not in name
    if name == "overwriting":  # calls change its state: each model is compared at its first call
        torch.manual_seed(0)
    compare(model_of(name), case.args(), dynamic_shapes=case.dynamic_shapes, tolerance=1e-5 if exact else 1e-2)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    make, shape = CONVOLUTIONS[name]
    if name in ("3x3 wide", "inverted twice"):
        return  # as others, and large
    torch.manual_seed(0)
    compare(make().eval(), (x(*shape),))


@pytest.mark.parametrize("name", ["linear", "linear int8", "windows", "depthwise"])
def test_products_of_integers(name: str) -> None:
    make, shape = INTEGERS[name]
    torch.manual_seed(0)
    compare(make().eval(), (x(*shape),), tolerance=2e-2)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(bits: int) -> None:
    torch.manual_seed(0)
    compare(Coded(72, 50, 8, bits, zeros=True).eval(), (x(9, 72),))


def test_halves_and_products_in_bfloat16() -> None:
    torch.manual_seed(0)
    keep = torch.arange(13)[None] < torch.tensor([[9], [13]])
    compare(Block().eval().bfloat16(), (x(2, 13, 24).bfloat16(), keep), tolerance=3e-2)
    compare(nn.Linear(20, 30).eval().half(), (x(5, 20).half(),), tolerance=2e-3)
    compare(Chain(72).eval(), (x(9, 72),), precision="bfloat16", tolerance=5e-2)


def test_dynamic_sizes_none_and_one_among_them() -> None:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=0, max=64)
    sizes = [(x(n, 72),) for n in (0, 1, 2, 49)]
    compare(Chain(72).eval(), (x(5, 72),), *sizes, dynamic_shapes=({0: rows},))


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sort": (lambda a: (a.sort(-1), a.sort(0, descending=True), a.argsort(dim=-1, stable=True)), (x(5, 7).round(),)),
    "topk": (lambda a: (a.topk(3, -1), a.median(-1), a.round().mode(-1)), (x(5, 7),)),
    "cumulative": (lambda a: (a.cumsum(0), a.cumprod(1), a.cummax(0), a.logcumsumexp(1)), (x(5, 7),)),
    "search": (lambda a, b: torch.searchsorted(a.sort(-1)[0], b, right=True), (x(4, 9), x(4, 3, seed=1))),
    "linalg": (
        lambda a: (torch.linalg.cholesky(a @ a.mT + torch.eye(4)), torch.linalg.det(a), torch.linalg.inv(a)),
        (x(3, 4, 4),),
    ),
    "solve": (lambda a, b: torch.linalg.solve(a, b), (x(4, 4), x(4, 2, seed=1))),
    "qr": (lambda a: tuple(factor.abs() for factor in torch.linalg.qr(a)), (x(5, 3),)),
    "svd": (lambda a: torch.linalg.svdvals(a), (x(5, 3),)),
    "scatter": (
        lambda a, at: (a.scatter_add(0, at, a * 2), a.index_add(0, at[:, 0], a), a.scatter(0, at, 3.0)),
        (x(4, 3), torch.tensor([[0, 1, 2], [3, 0, 0], [1, 1, 1], [2, 2, 0]])),
    ),
    "pooling": (lambda a: (F.max_pool2d(a, 3, 2, 1, return_indices=True), F.avg_pool2d(a, 2)), (x(1, 2, 7, 9),)),
    "reductions": (
        lambda a: (a.sum(), a.prod(1), a.amax(0), a.argmin(1), (a > 0).all(0), (a > 3).any(), a.var(1)),
        (x(4, 6),),
    ),
    "reductions of nothing": (lambda a: (a.sum(1), a.prod(1), (a > 0).all(1)), (x(4, 0),)),
    "nan": (lambda a: (a.amax(1), a.argmax(1), a.sort(1)[0], a.sum(1)), (x(2, 3).masked_fill(x(2, 3) > 0, torch.nan),)),
    "integers": (
        lambda a: (a // 3, a % -3, a << 2, a >> 1, a**2, ~a, a.bitwise_xor(a * 2), (a * a).sum(0)),
        (torch.arange(-9, 9, dtype=torch.int32).reshape(3, 6),),
    ),
    "lstm": (nn.LSTM(5, 6), (x(4, 2, 5),)),
    "where": (lambda a: (torch.where(a > 0, a, -a), a.clamp(-0.5, 0.5), a.roll(1, 0), F.pad(a, (2, 1))), (x(4, 6),)),
    "float64": (lambda a: (a.exp(), torch.lgamma(a), torch.erfinv(a.tanh()), a @ a.mT), (x(4, 6).double(),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, args = FUNCTIONS[name]
    torch.manual_seed(0)
    compare(function, args)


def test_convolutions_of_no_image() -> None:
    batch = torch.export.Dim("batch", min=0, max=9)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 1)).eval()
    compare(model, (x(2, 3, 9, 7),), (x(0, 3, 9, 7),), (x(1, 3, 9, 7),), dynamic_shapes=({0: batch},))


def test_attention_of_no_batch_and_of_one_key() -> None:
    batch, length = torch.export.Dim("batch", min=0, max=9), torch.export.Dim("length", min=1, max=90)

    def call(a: int, b: int) -> tuple[X]:
        return (x(a, 2, b, 8),)

    def attend(a: X) -> X:
        return F.scaled_dot_product_attention(a, a * 2, a + 1, is_causal=True)

    compare(attend, call(2, 13), call(1, 1), call(0, 5), call(1, 70), dynamic_shapes=({0: batch, 2: length},))


def test_as_exact_as_eager() -> None:
    torch.manual_seed(0)
    model, given = Chain(72).eval(), x(130, 72)
    interpreted = ingot.compile(model, (given,), target="reference")
    with torch.no_grad():
        worst_ratio(interpreted(given), model(given), in_double(model)(given), "interpreted")


def test_random_numbers_are_those_of_native_code() -> None:
    def draw(a: X) -> tuple[X, ...]:
        return torch.rand_like(a), torch.randn_like(a), torch.randint(-5, 9, (40,)), torch.randperm(17), a * 1

    native, interpreted = (ingot.compile(draw, (x(30, 7),), target=target) for target in ("cpu", "reference"))
    for seed in (0, 3, 2**63 + 5):
        native.seed(seed)
        interpreted.seed(seed)
        for _ in range(2):
            ours, theirs = interpreted(x(30, 7)), native(x(30, 7))
            for place in (0, 2, 3):
                assert torch.equal(ours[place], theirs[place])
            torch.testing.assert_close(ours[1], theirs[1])
    native.close()


# ---------------------------------------------------------------------- the target


def test_arguments_and_state_are_written() -> None:
    model = CASES["overwriting"].make()
    eager = copy.deepcopy(model)
    interpreted = ingot.compile(model, (x(5, 6),), target="reference")
    for seed in range(3):
        mine, theirs = x(5, 6, seed=seed), x(5, 6, seed=seed)
        torch.testing.assert_close(interpreted(mine), eager(theirs))
        torch.testing.assert_close(mine, theirs)


def test_numbers_and_nested_results() -> None:
    def function(a: X, pair: tuple[X, int]) -> dict[str, Any]:
        return {"sum": [a + pair[0], pair[1]], "size": a.shape[0]}

    interpreted = ingot.compile(function, (x(3), (x(3, seed=1), 2)), target="reference")
    made = interpreted(x(3), (x(3, seed=1), 2))
    assert made["size"] == 3 and made["sum"][1] == 2
    torch.testing.assert_close(made["sum"][0], x(3) + x(3, seed=1))
    assert not interpreted.draws
    interpreted.close()


def test_what_the_target_has_not() -> None:
    interpreted = ingot.compile(nn.ReLU(), (x(3),), target="reference")
    with pytest.raises(ingot.errors.SaveError, match="cannot be saved"):
        interpreted.save("model.ingot")
    with pytest.raises(ingot.errors.UnsupportedMachine, match="builds no library"):
        REFERENCE.build(interpreted.module)
    with pytest.raises(ingot.errors.UnknownTarget, match="cannot be compiled and called"):
        ingot.compile(nn.Linear(3, 3), (x(2, 3),), target="reference", training=True)
    with pytest.raises(ingot.errors.CallError):
        interpreted(x(4))


def test_errors_of_the_model_are_those_of_native_code() -> None:
    def pick(a: X, at: X) -> X:
        return a[at]

    interpreted = ingot.compile(pick, (x(4), torch.tensor([0, 3])), target="reference")
    with pytest.raises(IndexOutOfRange, match=r"index 4 is out of range for a dim of 4 elements \(valid: -4 to 3\)"):
        interpreted(x(4), torch.tensor([0, 4]))
    divide = ingot.compile(lambda a, b: a // b, (torch.ones(3, dtype=torch.int32),) * 2, target="reference")
    with pytest.raises(DivisionByZero):
        divide(torch.ones(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32))

    def positive(a: X) -> X:
        torch._assert_async((a > 0).all(), "not positive")
        return a + 1

    asserting = ingot.compile(positive, (x(3).abs(),), target="reference")
    with pytest.raises(AssertionFailed, match="not positive"):
        asserting(-x(3).abs())


# ---------------------------------------------------------------------- modules by hand


def index(name: str, extent: int) -> Any:
    return symbol(name, below=extent)


def module_of(*steps: Stmt, size: int = 4, temporaries: tuple[Buffer, ...] = (), dtype: str = "float32") -> Module:
    """From the input a to the output o, both of so many elements."""
    a, o = Buffer("a", dtype, (size,), "input"), Buffer("o", dtype, (size,), "output")
    buffers = {b.name: b for b in (a, o, *temporaries)}
    return Module(buffers, steps, (Argument("a", "a", dtype, (size,)),), (Argument("o", "o", dtype, (size,)),), (), {})


def copying(source: str, to: str, size: int = 4, shift: int = 0, dtype: str = "float32") -> Map:
    i, ops = index("i0", size), BodyBuilder()
    value = ops.load(source, i + shift, dtype)
    return Map((Loop("i0", size),), ops.finish([value]), (Store(to, i, 0),), loop_ir.SourceLocation(op="copy"))


def interpret(module: Module, **options: Any) -> Any:
    return Interpreter(module, {}, **options).run([np.arange(4, dtype=np.float32)])[0]


def test_a_load_outside_a_buffer_names_its_step() -> None:
    assert interpret(module_of(copying("a", "o"))).tolist() == [0, 1, 2, 3]
    with pytest.raises(InterpreterError, match=r"Map \(copy\)") as caught:
        interpret(module_of(copying("a", "o", shift=1)))
    assert "it accesses a[4], and a has 4 elements" in str(caught.value)
    with pytest.raises(InterpreterError, match="accesses a"):
        interpret(module_of(copying("a", "o", shift=-1)))


def test_a_masked_load_reads_nothing_where_the_mask_is_false() -> None:
    i, ops = index("i0", 4), BodyBuilder()
    inside = ops.call("lt", ops.index(i), ops.const(3, "int64"))
    with ops.mask(inside):
        value = ops.load("a", i + 1, "float32")
    step = Map((Loop("i0", 4),), ops.finish([value]), (Store("o", i, 0),))
    assert interpret(module_of(step)).tolist() == [1, 2, 3, 0]


def test_what_nothing_wrote_is_poison() -> None:
    t = Buffer("t", "float32", (4,))
    assert np.isnan(interpret(module_of(copying("t", "o"), temporaries=(t,)))).all()
    assert np.isnan(interpret(module_of(copying("a", "o", size=3)))[3])
    flags = Buffer("t", "bool", (4,))
    with pytest.raises(InterpreterError, match="a bool that nothing wrote"):
        interpret(module_of(copying("t", "o", dtype="bool"), temporaries=(flags,)))


def test_points_that_write_the_same_element() -> None:
    i, ops = index("i0", 4), BodyBuilder()
    body = ops.finish([ops.load("a", i, "float32")])
    step = Map((Loop("i0", 4),), body, (Store("o", i // 2, 0),))
    with pytest.raises(InterpreterError, match="several points write the same element of o"):
        interpret(module_of(step))
    assert interpret(module_of(replace(step, collides=True))).tolist()[:2] == [1, 3]  # in order: the last one stays
    adding = replace(step, collides=True, stores=(Store("o", i // 2, 0, "add"),))
    assert interpret(module_of(copying("a", "o"), adding)).tolist() == [1, 6, 2, 3]


def test_rows_of_a_nest_do_not_see_each_other() -> None:
    """The second step reads what the first one wrote in another row: native code has not written that, or has."""
    t = Buffer("t", "float32", (64,))
    a, o = Buffer("a", "float32", (64,), "input"), Buffer("o", "float32", (64,), "output")
    arguments = [Argument(name, name, "float32", (64,)) for name in ("a", "o")]

    def run(shift: int) -> Any:
        i, ops = index("i0", 64), BodyBuilder()
        second = Map((Loop("i0", 64),), ops.finish([ops.load("t", (i + shift) % 64, "float32")]), (Store("o", i, 0),))
        nest = LoopNest((Loop("i0", 64),), (copying("a", "t", 64), second), ())
        module = Module({b.name: b for b in (a, o, t)}, (nest,), (arguments[0],), (arguments[1],), (), {})
        return Interpreter(module, {}).run([np.arange(64, dtype=np.float32)])[0]

    assert run(0).tolist() == list(range(64))
    for shift in (1, 2, 17, 63):
        assert np.isnan(run(shift)).any()


def test_a_map_in_place_reads_its_own_points_alone() -> None:
    i, ops = index("i0", 64), BodyBuilder()
    buffers = {"a": Buffer("a", "float32", (64,), "input")}
    mirrored = Map((Loop("i0", 64),), ops.finish([ops.load("a", 63 - i, "float32")]), (Store("a", i, 0),))
    module = Module(buffers, (mirrored,), (Argument("a", "a", "float32", (64,), True),), (), (), {})
    given = np.arange(64, dtype=np.float32)
    Interpreter(module, {}).run([given])
    assert given.tolist() != list(range(63, -1, -1))  # as in native code: some elements were overwritten before


def test_large_grids_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "MOST_POINTS", 16)
    torch.manual_seed(0)
    compare(Chain(24).eval(), (x(9, 24),))
    compare(FUNCTIONS["scatter"][0], FUNCTIONS["scatter"][1])


def test_temporaries_lie_where_the_plan_says() -> None:
    first, second = Buffer("t", "float32", (4,)), Buffer("u", "float32", (4,))
    i, ops = index("i0", 4), BodyBuilder()
    total = ops.call("add", ops.load("t", i, "float32"), ops.load("u", i, "float32"))
    add = Map((Loop("i0", 4),), ops.finish([total]), (Store("o", i, 0),))
    module = module_of(copying("a", "t"), copying("a", "u"), add, temporaries=(first, second))
    planned = plan(module)
    assert interpret(module, plan=planned).tolist() == [0, 2, 4, 6]
    overlapping = replace(planned, offsets={"t": 0, "u": 4})
    assert interpret(module, plan=overlapping).tolist() != [0, 2, 4, 6]
    with pytest.raises(InterpreterError, match="does not fit in the arena"):
        interpret(module, plan=replace(planned, offsets={"t": 0, "u": planned.size - 4}))


def test_sizes_are_checked_against_their_ranges() -> None:
    rows = torch.export.Dim("rows", min=2, max=8)
    program = run_cpu_pipeline(ingot.capture(lambda a: a + 1, (x(3),), dynamic_shapes=({0: rows},)))
    module = lower(program)
    with pytest.raises(InputError, match="outside its range"):
        Interpreter(module, {}).run([np.zeros(9, np.float32)])


def test_every_type_of_step_has_a_rule() -> None:
    bases = (WithEpilogue, StepGroup)
    steps = [type_ for type_ in loop_ir.Stmt.__args__ if type_ not in bases]  # type: ignore[attr-defined]
    # A group of steps without a rule is interpreted as its members, one after another.
    own = [type_ for type_ in WithEpilogue.__subclasses__() if type_.__module__.startswith("ingot")]
    assert {"PackedGemm", "Convolution"} <= {type_.__name__ for type_ in own}
    rules = {**interpreters._RULES, **CPU.reference_rules, **CUDA.reference_rules}
    known = {type_.__name__ for type_ in rules if isinstance(type_, type)}  # slots make a class twice
    assert {type_.__name__ for type_ in (*steps, *own)} <= known
    with pytest.raises(InterpreterError, match="no rule for it"):
        interpret(module_of(Unknown()))


class Unknown(StepGroup):
    origin = loop_ir.SourceLocation()

    def members(self) -> tuple[Stmt, ...]:
        return (WithoutRule(),)


class WithoutRule(WithEpilogue):
    origin = loop_ir.SourceLocation()
