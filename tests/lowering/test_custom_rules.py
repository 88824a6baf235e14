"""Operators of the user's own in compiled models: lowering rules, and kernels in C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import AssertionFailed, CompilerFailed, RegistrationError, UnsupportedOperator
from ingot.lowering import custom_rules
from ingot.lowering.rules.pointwise import elementwise

LIBRARY = torch.library.Library("custom_rules", "DEF")


def define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any] | None = None) -> torch._ops.OpOverload:
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, compute, "CPU")
    torch.library.register_fake(f"custom_rules::{name}", fake or compute, lib=LIBRARY)
    made: torch._ops.OpOverload = getattr(torch.ops.custom_rules, name).default
    return made


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards; the rule of an operator stays, and finds what is registered then."""
    monkeypatch.setattr(custom_rules, "_C_KERNELS", dict(custom_rules._C_KERNELS))


class Calls(nn.Module):
    def __init__(self, operator: Any, *more: Any) -> None:
        super().__init__()
        self.operator, self.more = operator, more

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.operator(*tensors, *self.more)


swiglu = define("swiglu(Tensor x, Tensor gate) -> Tensor", lambda x, gate: x * nn.functional.silu(gate))
SWIGLU = """
static float silu(float x) { return x / (1.0f + ig_exp_f32(-x)); }

int custom_swiglu(const ingot_tensor *inputs, const ingot_tensor *outputs, const ingot_number *numbers)
{
    const float *x = inputs[0].data, *gate = inputs[1].data;
    float *y = outputs[0].data;
    int64_t count = 1;
    for (int d = 0; d < outputs[0].rank; ++d) count *= outputs[0].shape[d];
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * silu(gate[i]);
    (void)numbers;
    return 0;
}
"""


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.ops.custom_rules.swiglu(*self.up(x).chunk(2, -1)))


def test_a_c_kernel_for_all_sizes(tmp_path: Path) -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")
    model = FeedForward().eval()
    compiled = ingot.compile(model, (torch.randn(4, 16),), dynamic_shapes={"x": {0: "rows"}}, threads=2)
    for rows in (1, 2, 7, 64):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    compiled.save(tmp_path / "m.ingot")
    x = torch.randn(5, 16)
    np.save(tmp_path / "x.npy", x.numpy())
    script = (
        "import sys, numpy as np, ingot_runtime\n"
        f"y = ingot_runtime.load({str(tmp_path / 'm.ingot')!r})(np.load({str(tmp_path / 'x.npy')!r}))\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, y)\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), model(x), rtol=1e-4, atol=1e-5)


def test_every_scheduling_step_keeps_what_it_computes() -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")
    model, x = FeedForward().eval(), torch.randn(4, 16)
    compiled = ingot.compile(model, (x,), check="numerics")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


_stats = define(
    "stats(Tensor x, int shift, float scale, bool negate) -> (Tensor, Tensor)",
    lambda x, shift, scale, negate: ((x.sum(-1) + shift) * (-scale if negate else scale), x.argmax(-1)),
)
STATS = """
int custom_stats(const ingot_tensor *inputs, const ingot_tensor *outputs, const ingot_number *numbers)
{
    const float *x = inputs[0].data;
    float *total = outputs[0].data;
    int64_t *place = outputs[1].data;
    const int64_t columns = inputs[0].shape[inputs[0].rank - 1];
    int64_t rows = 1;
    for (int d = 0; d < outputs[0].rank; ++d) rows *= outputs[0].shape[d];
    const double scale = numbers[2].i ? -numbers[1].f : numbers[1].f;
    if (inputs[0].dtype != INGOT_FLOAT32 || outputs[1].dtype != INGOT_INT64) return 1;
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        int64_t best = 0;
        for (int64_t c = 0; c < columns; ++c) {
            sum += x[r * columns + c];
            if (x[r * columns + c] > x[r * columns + best]) best = c;
        }
        total[r] = (float)((sum + numbers[0].i) * scale);
        place[r] = best;
    }
    return 0;
}
"""


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (1, 1), (0, 4)])
def test_several_results_and_numbers(shape: Sequence[int]) -> None:
    ingot.register_c_kernel(_stats, STATS, function="custom_stats")
    x = torch.randn(*shape)
    model = Calls(_stats, 3, 0.1, True)
    found = ingot.compile(model, (x,))(x)
    for result, expected in zip(found, model(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_inputs_are_dense() -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")

    class Strided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.custom_rules.swiglu(x.t()[1:], x[:, 1:].t() + 1).t() * 2

    x = torch.randn(6, 9)
    torch.testing.assert_close(ingot.compile(Strided(), (x,))(x), Strided()(x), rtol=1e-5, atol=1e-6)


def test_bfloat16_comes_as_its_bits() -> None:
    double = define("double_it(Tensor x) -> Tensor", lambda x: x * 2)
    text = """
int custom_double(const ingot_tensor *inputs, const ingot_tensor *outputs, const ingot_number *numbers)
{
    (void)numbers;
    if (inputs[0].dtype != INGOT_BFLOAT16) return 1;
    const uint16_t *x = inputs[0].data;
    uint16_t *y = outputs[0].data;
    for (int64_t i = 0; i < inputs[0].shape[0]; ++i) y[i] = (uint16_t)(x[i] & 0x7fff ? x[i] + 0x80 : x[i]);
    return 0;
}
"""
    ingot.register_c_kernel(double, text, function="custom_double")
    x = torch.randn(33).bfloat16()
    assert torch.equal(ingot.compile(Calls(double), (x,))(x), x * 2)


def test_a_kernel_that_fails_names_its_line() -> None:
    checked = define("checked(Tensor x) -> Tensor", lambda x: x.clone())
    text = """
int custom_checked(const ingot_tensor *inputs, const ingot_tensor *outputs, const ingot_number *numbers)
{
    (void)numbers;
    *(float *)outputs[0].data = *(float *)inputs[0].data;
    return *(float *)inputs[0].data < 0;
}
"""
    ingot.register_c_kernel(checked, text, function="custom_checked")
    compiled = ingot.compile(Calls(checked), (torch.ones(1),))
    assert compiled(torch.ones(1)) == 1
    with pytest.raises(AssertionFailed, match=r"custom_rules.checked.*test_custom_rules.py:\d+"):
        compiled(-torch.ones(1))
    assert compiled(torch.ones(1)) == 1


def test_text_that_does_not_compile() -> None:
    broken = define("broken(Tensor x) -> Tensor", lambda x: x.clone())
    ingot.register_c_kernel(broken, "int custom_broken(int x) { return y; }", function="custom_broken")
    with pytest.raises(CompilerFailed, match=r"correct what was registered as a C kernel \(custom_broken\)"):
        ingot.compile(Calls(broken), (torch.ones(1),))


def test_a_gpu_is_refused() -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")
    x = torch.randn(2, 16)
    with pytest.raises(UnsupportedOperator, match="C kernel, which runs on the CPU only"):
        ingot.compile(FeedForward().eval(), (x,), target="cuda")


def test_arguments_that_a_kernel_cannot_take() -> None:
    maybe = define("maybe(Tensor x, Tensor? y) -> Tensor", lambda x, y: x.clone())
    ingot.register_c_kernel(maybe, "int custom_maybe(void) { return 0; }", function="custom_maybe")
    with pytest.raises(UnsupportedOperator, match="cannot take y, which is None"):
        ingot.compile(Calls(maybe, None), (torch.ones(1),))


def test_a_rule_can_be_registered_again() -> None:
    scaled = define("scaled(Tensor x) -> Tensor", lambda x: x * 3)

    def register(factor: float) -> None:
        @ingot.register_lowering(scaled)
        def lower_scaled(low: Any, x: Any) -> Any:
            return elementwise(low, [x], lambda ops, value: ops.call("mul", value, ops.const(factor, "float32")))

    x = torch.randn(5)
    register(2.0)
    assert torch.equal(ingot.compile(Calls(scaled), (x,), cache=False)(x), x * 2)
    register(3.0)
    assert torch.equal(ingot.compile(Calls(scaled), (x,), cache=False)(x), x * 3)


def test_torch_compile_keeps_one_graph() -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")
    torch._dynamo.reset()
    model, x = FeedForward().eval(), torch.randn(4, 16)
    with torch.no_grad():
        compiled = torch.compile(model, backend="ingot", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("register", "match"),
    [
        (lambda: ingot.register_lowering("mine::op"), "mine::op is not an operator"),
        (lambda: ingot.register_lowering(torch.ops.aten.relu), "give an overload"),
        (lambda: ingot.register_lowering(torch.ops.aten.relu.default), "a lowering rule of Ingot's own"),
        (lambda: ingot.register_c_kernel(swiglu, SWIGLU, function="ig_swiglu"), "cannot be the name of a C kernel"),
        (lambda: ingot.register_c_kernel(swiglu, SWIGLU, function="other"), "does not define other"),
    ],
)
def test_what_cannot_be_registered(register: Callable[[], Any], match: str) -> None:
    with pytest.raises(RegistrationError, match=match):
        register()


def test_two_kernels_of_one_name() -> None:
    ingot.register_c_kernel(swiglu, SWIGLU, function="custom_swiglu")
    with pytest.raises(RegistrationError, match="two C kernels are called custom_swiglu"):
        ingot.register_c_kernel(_stats, SWIGLU + "\n", function="custom_swiglu")


def test_rules_of_ingot_are_known_before_anything_is_lowered() -> None:
    script = (
        "import torch, ingot\n"
        "try: ingot.register_lowering(torch.ops.aten.relu.default)\n"
        "except ingot.errors.RegistrationError: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
