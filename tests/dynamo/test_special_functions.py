"""Special functions and orthogonal polynomials, as native code in one piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from ingot.dynamo.late_forms import find_late_form
from ingot.passes.decompositions.special import special_tables
from tests.codegen.fit_math import coefficients, relative_error
from tests.dynamo import fit_special_functions
from tests.dynamo.recording import Recording

aten = torch.ops.aten
EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, 8.0, -4.0, 3.0, 1e-30, 1e-5, 700.0, -700.0, 1e5, 0.5)
# What each is, from an arbitrary precision; the intervals lie across the borders of its pieces.
EXACT: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "bessel_j0": (lambda x: mpmath.besselj(0, x), -30, 30),
    "bessel_j1": (lambda x: mpmath.besselj(1, x), -30, 30),
    "bessel_y0": (lambda x: mpmath.bessely(0, x), 0.01, 30),
    "bessel_y1": (lambda x: mpmath.bessely(1, x), 0.01, 30),
    "modified_bessel_k0": (lambda x: mpmath.besselk(0, x), 0.01, 30),
    "modified_bessel_k1": (lambda x: mpmath.besselk(1, x), 0.01, 30),
    "scaled_modified_bessel_k0": (lambda x: mpmath.exp(x) * mpmath.besselk(0, x), 0.01, 30),
    "scaled_modified_bessel_k1": (lambda x: mpmath.exp(x) * mpmath.besselk(1, x), 0.01, 30),
    "airy_ai": (mpmath.airyai, -12, 12),
    "erfcx": (lambda x: mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x), -25, 60),
    "ndtri": (lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1), 0.001, 0.999),
    "spherical_bessel_j0": (lambda x: mpmath.sin(x) / x, -10.1, 10),
}
# Infinite at infinity, where torch says nan.
ENDLESS = ("modified_bessel_i0", "modified_bessel_i1")
ONE_ARGUMENT = (*EXACT, *ENDLESS, "log_ndtr")
POLYNOMIALS = (
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
)
CHEBYSHEV = POLYNOMIALS[4:]


def run(recording: Recording, function: Callable[..., Any], *args: Any) -> Any:
    made = torch.compile(function, backend=recording, fullgraph=True)(*args)
    assert recording.native and all(recording.native), recording.reports
    return made


@pytest.mark.parametrize("name", EXACT)
def test_against_more_digits(name: str) -> None:
    exact, low, high = EXACT[name]
    x = torch.linspace(low, high, 90, dtype=torch.float64)
    have = find_late_form(getattr(aten, f"special_{name}").default)(x)  # type: ignore[misc]
    with mpmath.mp.workdps(40):
        want = torch.tensor([float(exact(value)) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(have, want, rtol=2e-13, atol=2e-14 if float(want.abs().max()) < 10 else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_one_argument(recording: Recording, name: str, dtype: torch.dtype) -> None:
    function = getattr(torch.special, name)
    edges = [edge for edge in EDGES if name not in ENDLESS or not math.isinf(edge)]
    x = torch.cat([torch.tensor(edges), torch.linspace(-6, 9, 200), torch.linspace(0, 1, 40)]).to(dtype)
    # torch's own Bessel and Airy functions are some 1e-6 off between 5 and 8 and below -2.
    want = function(x.double()).to(dtype)
    torch.testing.assert_close(run(recording, function, x), want, rtol=3e-5, atol=4e-6, equal_nan=True)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_polygamma(recording: Recording, n: int) -> None:
    x = torch.cat([torch.linspace(-5.3, 10, 100), torch.tensor([math.nan, 1e-4, 1e4, -1e-3])])
    made = run(recording, lambda x: torch.special.polygamma(n, x), x)
    exact = torch.special.polygamma(n, x.double())
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_polygamma_at_poles(recording: Recording) -> None:
    x = torch.tensor([0.0, -1.0, -2.0])
    made = run(recording, lambda x: (torch.special.polygamma(2, x), torch.special.polygamma(3, x.int())), x)
    torch.testing.assert_close(made, (torch.special.polygamma(2, x), torch.special.polygamma(3, x.int())))


def test_zeta(recording: Recording) -> None:
    x = torch.tensor([0.5, 1.0, 1.1, 2.0, 2.5, 3.0, 4.0, 10.0, math.nan]).unsqueeze(1)
    q = torch.tensor([0.3, 1.0, 7.7, 100.0, 0.0, -1.0, -2.5, -3.25, math.nan])
    for given in ((x, q), (x, 1.5), (2.0, q)):
        torch.testing.assert_close(
            run(recording, torch.special.zeta, *given), torch.special.zeta(*given), equal_nan=True
        )


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(recording: Recording, name: str) -> None:
    function = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-2, 2, 50), torch.tensor([0.0, 1.0, -1.0, 20.0, math.inf])]).double()
    for n in (-1, 0, 1, 2, 6, 9, 20):
        have, want = run(recording, lambda x: function(x, n), x), function(x, n)  # noqa: B023  at once
        torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("name", CHEBYSHEV)
def test_polynomials_of_many_degrees(recording: Recording, name: str) -> None:
    function = getattr(torch.special, name)
    x, n = torch.linspace(-2, 2, 50).double().unsqueeze(1), torch.tensor([-1, 0, 1, 2, 3, 7, 12])
    for given in ((x, n), (0.3, n)):
        tolerance = 1e-10 if given[0] is x else 1e-5  # the latter is of float32
        torch.testing.assert_close(run(recording, function, *given), function(*given), rtol=tolerance, atol=tolerance)


def test_a_degree_that_is_a_tensor_runs_in_eager(recording: Recording) -> None:
    x, n = torch.randn(4), torch.tensor([1, 2, 3, 4])
    function = torch.special.legendre_polynomial_p
    made = torch.compile(lambda x, n: function(x, n) + (x * 2).exp(), backend=recording)(x, n)
    torch.testing.assert_close(made, function(x, n) + (x * 2).exp())
    (report,) = recording.reports
    assert report.operations - report.native == 1 and "its degree is a tensor" in report.reasons[0]


@pytest.mark.parametrize("name", fit_special_functions.FITS)
def test_tables(name: str) -> None:
    fit = fit_special_functions.FITS[name]
    powers = coefficients(fit)
    assert [float(c) for c in reversed(powers)] == list(getattr(special_tables, name.upper()))
    assert relative_error(fit, powers) < 1e-16
