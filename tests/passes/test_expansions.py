"""Operators that torch does not take apart: special functions, polynomials, pools of windows that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from torch import nn

import ingot
from ingot.passes.decompositions.special import find_expansion
from ingot.passes.decompositions.special.expansions import EXPANSIONS, LATE

special = torch.special
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "erfcx": special.erfcx,
    "log_ndtr": special.log_ndtr,
    "ndtri": lambda x: special.ndtri(x.sigmoid()),
    "modified_bessel_k0": lambda x: special.modified_bessel_k0(x.abs() + 0.1),
    "scaled_modified_bessel_k1": lambda x: special.scaled_modified_bessel_k1(x.abs() + 0.1),
    "spherical_bessel_j0": special.spherical_bessel_j0,
    "zeta": lambda x: special.zeta(x.abs() + 1.1, x.abs() + 0.2),
    "legendre": lambda x: special.legendre_polynomial_p(x, 5),
    "hermite": lambda x: special.hermite_polynomial_h(x, 4),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_native_code_gives_the_function(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, 101, dtype=dtype)
    function = CASES[name]
    exact = function(x.double()).to(dtype)
    torch.testing.assert_close(ingot.compile(lambda x: function(x), (x,))(x), exact)


@pytest.mark.parametrize("name", ["erfcx", "ndtri", "log_ndtr", "zeta", "spherical_bessel_j0", "legendre"])
def test_onnx_files_have_them(name: str, tmp_path: Path) -> None:
    """The exporter compares with torch before the file appears."""
    function = CASES[name]
    ingot.export_onnx(ingot.capture(lambda x: function(x), (torch.randn(9),)), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").exists()


def test_trigamma_is_exact_to_the_last_digits() -> None:
    x = torch.tensor([0.01, 0.17, 0.6, 1.5, 4.0, 9.0, 30.0, 1e4], dtype=torch.float64)
    trigamma = find_expansion(torch.ops.aten.polygamma.default, late=True)
    assert trigamma is not None
    found = ingot.compile(lambda x: trigamma(1, x), (x,))(x)
    exact = torch.tensor([float(mpmath.psi(1, float(value))) for value in x], dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-15, atol=0)


@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (0, 2, 7, 7)])
def test_windows_that_are_drawn(shape: tuple[int, ...]) -> None:
    class Pools(nn.Module):
        def forward(self, x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
            return nn.functional.fractional_max_pool2d(x, 2, output_size=(4, 3), _random_samples=samples)

    x, samples = torch.randn(shape), torch.rand(*shape[:2], 2)
    assert torch.equal(ingot.compile(Pools(), (x, samples))(x, samples), Pools()(x, samples))


def test_expansions_replace_no_rule() -> None:
    from ingot.lowering.lower import rule_of

    find_expansion(None)
    for name in EXPANSIONS:
        namespace, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            if overload != "out" and not overload.endswith("_out"):
                assert rule_of(op) is None, op


def test_late_expansions_are_for_graphs_of_torch() -> None:
    late = torch.ops.aten.special_bessel_j0.default
    assert EXPANSIONS.has_tag("aten::special_bessel_j0", LATE)
    assert find_expansion(late) is None
    assert find_expansion(late, late=True) is not None
