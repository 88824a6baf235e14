"""Where the numbers of `ingot/passes/decompositions/special/special_tables.py` come from.

    python -m tests.dynamo.fit_special_functions            # fit every polynomial again and write the module
    python -m tests.dynamo.fit_special_functions j0_near    # print how far one of them is from its function

Each is a polynomial in t, from -1 to 1, which interpolates its function at Chebyshev nodes in 60 digits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import mpmath
from mpmath import mpf

from tests.codegen.fit_math import Fit, Number, coefficients, relative_error

MODULE = Path(__file__).parents[2] / "src" / "ingot" / "passes" / "decompositions" / "special" / "special_tables.py"
HEAD = '''"""Polynomials of special functions: coefficients of the powers of t, from -1 to 1, the highest one first.

Written by `python -m tests.dynamo.fit_special_functions`, which says what each is of.
"""

from __future__ import annotations

'''


def _of_square(function: Callable[[Number], Number], end: int) -> Callable[[Number], Number]:
    """A function of x from 0 to `end`, by its square."""
    return lambda t: function(end * mpmath.sqrt((1 + t) / 2))


def _modulus(order: int, part: Callable[[Number], Number], weight: int) -> Callable[[Number], Number]:
    """sqrt(πx/2) (J + iY)(x) e^-i(x - π/4 - order π/2) for x from 8 on, by the square of 8/x; its real part, or x times
    its imaginary part."""

    def function(t: Number) -> Number:
        x = 8 / mpmath.sqrt((1 + t) / 2)
        angle = x - mpmath.pi / 4 - order * mpmath.pi / 2
        value = mpmath.besselj(order, x) + 1j * mpmath.bessely(order, x)
        return part(mpmath.sqrt(mpmath.pi * x / 2) * value * mpmath.exp(-1j * angle)) * x**weight

    return function


def _y0_rest(x: Number) -> Number:
    return mpmath.bessely(0, x) - 2 / mpmath.pi * mpmath.log(x / 2) * mpmath.besselj(0, x)


def _y1_rest(x: Number) -> Number:
    return (mpmath.bessely(1, x) - 2 / mpmath.pi * (mpmath.log(x / 2) * mpmath.besselj(1, x) - 1 / x)) / x


def _k0_rest(x: Number) -> Number:
    return mpmath.besselk(0, x) + mpmath.log(x / 2) * mpmath.besseli(0, x)


def _k1_rest(x: Number) -> Number:
    return (mpmath.besselk(1, x) - mpmath.log(x / 2) * mpmath.besseli(1, x) - 1 / x) / x


def _k_tail(order: int) -> Callable[[Number], Number]:
    """sqrt(x) e^x K(x) for x from 2 on, by 2/x."""

    def function(t: Number) -> Number:
        x = 4 / (1 + t)
        return mpmath.sqrt(x) * mpmath.exp(x) * mpmath.besselk(order, x)

    return function


def _airy_wave(part: Callable[[Number], Number], weight: int) -> Callable[[Number], Number]:
    """sqrt(π) y^¼ (Ai + iBi)(-y) e^i(ζ - π/4), ζ = ⅔ y^1.5, for y from 4 on, by the square of (16/3)/ζ; its real part,
    or ζ times its imaginary part."""

    def function(t: Number) -> Number:
        zeta = mpf(16) / 3 / mpmath.sqrt((1 + t) / 2)
        y = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
        value = mpmath.airyai(-y) + 1j * mpmath.airybi(-y)
        turned = mpmath.sqrt(mpmath.pi) * y ** mpf("0.25") * value * mpmath.exp(1j * (zeta - mpmath.pi / 4))
        return part(turned) * zeta**weight

    return function


def _airy_tail(t: Number) -> Number:
    """2 sqrt(π) x^¼ e^ζ Ai(x), ζ = ⅔ x^1.5, for x from 3 on, by ζ(3)/ζ."""
    zeta = 4 * mpmath.sqrt(3) / (1 + t)
    x = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
    return 2 * mpmath.sqrt(mpmath.pi) * x ** mpf("0.25") * mpmath.exp(zeta) * mpmath.airyai(x)


def _erfcx(t: Number) -> Number:
    """(1 + 2x) e^(x²) erfc(x), x = 4 (1 + t) / (1 - t)."""
    x = 4 * (1 + t) / (1 - t)
    if x > 1e6:
        return (1 + 2 * x) / x / mpmath.sqrt(mpmath.pi) * (1 - 1 / (2 * x * x) + 3 / (4 * x**4))
    return (1 + 2 * x) * mpmath.exp(x * x) * mpmath.erfc(x)


def _whole(function: Callable[[Number], Number], degree: int) -> Fit:
    return Fit(function, -1, 1, degree)


FITS = {
    "j0_near": _whole(_of_square(lambda x: mpmath.besselj(0, x), 8), 17),
    "j1_near": _whole(_of_square(lambda x: mpmath.besselj(1, x) / x, 8), 17),
    "y0_near": _whole(_of_square(_y0_rest, 8), 17),
    "y1_near": _whole(_of_square(_y1_rest, 8), 17),
    "j0_real": _whole(_modulus(0, mpmath.re, 0), 13),
    "j0_imag": _whole(_modulus(0, mpmath.im, 1), 15),
    "j1_real": _whole(_modulus(1, mpmath.re, 0), 13),
    "j1_imag": _whole(_modulus(1, mpmath.im, 1), 15),
    "k0_near": _whole(_of_square(_k0_rest, 2), 10),
    "k1_near": _whole(_of_square(_k1_rest, 2), 10),
    "k0_tail": _whole(_k_tail(0), 24),
    "k1_tail": _whole(_k_tail(1), 24),
    "airy_near": _whole(lambda t: mpmath.airyai(mpf(7) / 2 * t - mpf(1) / 2), 34),
    "airy_real": _whole(_airy_wave(mpmath.re, 0), 17),
    "airy_imag": _whole(_airy_wave(mpmath.im, 1), 20),
    "erfcx": _whole(_erfcx, 24),
    "airy_tail": _whole(_airy_tail, 20),
}


def module() -> str:
    """The text of the module of tables."""
    lines = [HEAD]
    for name, fit in FITS.items():
        lines.append(f"{name.upper()} = (\n")
        texts = [repr(float(c)) for c in reversed(coefficients(fit))]
        lines += [f"    {', '.join(texts[at : at + 4])},\n" for at in range(0, len(texts), 4)]
        lines.append(")  # fmt: skip\n")
    return "".join(lines)


def main(names: list[str]) -> None:
    for name in names:
        fit = FITS[name]
        print(f"{name}: degree {fit.degree}, relative error {relative_error(fit, coefficients(fit)):.2g}")
    if not names:
        MODULE.write_text(module(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
