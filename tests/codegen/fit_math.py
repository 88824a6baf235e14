"""Where the polynomials of `codegen/c/math_*.h` come from.

    python tests/codegen/fit_math.py            # fit every polynomial again and write it into the headers
    python tests/codegen/fit_math.py exp_f32    # print how far one of them is from its function

A header holds, between two comments, the lines that this file writes:

    /* poly p(r): exp_f32 */
    float p = …;
    p = ig_fma_f32(p, r, …);
    /* end */

Each fit interpolates its function at Chebyshev nodes in 60 digits and rounds the coefficients once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy
from mpmath import mp, mpf

HEADERS = Path(__file__).parents[2] / "src" / "ingot" / "codegen" / "c"
BLOCK = re.compile(r"( *)/\* poly (\w+)\((\w+)\): (\w+) \*/\n(.*?) */\* end \*/\n", re.DOTALL)
DIGITS = 60

Number = Any  # mpmath ships no annotations


@dataclass(frozen=True, slots=True)
class Fit:
    """A polynomial of `degree` in x that is near `function` on [low, high]."""

    function: Callable[[Number], Number]
    low: float
    high: float
    degree: int


def _exp_rest(r: Number) -> Number:
    return (mpmath.expm1(r) - r) / r**2


def _log_rest(f: Number) -> Number:
    return (mpmath.log1p(f) - f + f**2 / 2) / f**3


def _log_rest_of_square(z: Number) -> Number:
    s = mpmath.sqrt(z)
    return (2 * mpmath.atanh(s) - 2 * s) / s**3


def _log_rest_after_two_thirds(z: Number) -> Number:
    return (_log_rest_of_square(z) - mpf(2) / 3) / z


def _sin_rest(z: Number) -> Number:
    r = mpmath.sqrt(z)
    return (mpmath.sin(r) - r) / r**3


def _cos_rest(z: Number) -> Number:
    return (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2


def _asin_rest(z: Number) -> Number:
    y = mpmath.sqrt(z)
    return (mpmath.asin(y) - y) / y**3


def _atan_rest(z: Number) -> Number:
    t = mpmath.sqrt(z)
    return (mpmath.atan(t) - t) / t**3


def _erf_rest(z: Number) -> Number:
    x = mpmath.sqrt(z)
    return mpmath.erf(x) / x - 1


def _scaled_erfcx(t: Number) -> Number:
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mpmath.exp(x * x) * mpmath.erfc(x)


def _erfinv_over_x(w: Number) -> Number:
    x = mpmath.sqrt(-mpmath.expm1(-w))
    return mpmath.erfinv(x) / x


def _stirling_rest(z: Number) -> Number:
    x = 1 / mpmath.sqrt(z)
    return x * (mpmath.loggamma(x) - ((x - mpf(1) / 2) * mpmath.log(x) - x + mpmath.log(2 * mpmath.pi) / 2))


def _digamma_rest(z: Number) -> Number:
    x = 1 / mpmath.sqrt(z)
    return x * x * (mpmath.log(x) - 1 / (2 * x) - mpmath.digamma(x))


def _digamma_root() -> Number:
    return mpmath.findroot(mpmath.digamma, mpf("1.4616321449683623"))


def _digamma_over_root(t: Number) -> Number:
    x = mpf(3) / 2 + t
    return mpmath.digamma(x) / (x - _digamma_root())


def _bessel_series(order: int) -> Callable[[Number], Number]:
    """I_order(x) / (x/2)^order as a function of x²/4; every coefficient is positive."""
    return lambda z: mpmath.hyp0f1(order + 1, z) / mpmath.factorial(order)


def _bessel_tail(order: int) -> Callable[[Number], Number]:
    """sqrt(x) e^-x I_order(x) as a function of 1/x."""
    return lambda u: mpmath.sqrt(1 / u) * mpmath.exp(-1 / u) * mpmath.besseli(order, 1 / u)


HALF_LN2 = 0.3466
FITS: dict[str, Fit] = {
    "exp_f32": Fit(_exp_rest, -HALF_LN2, HALF_LN2, 4),
    "exp_f64": Fit(_exp_rest, -HALF_LN2, HALF_LN2, 9),
    "log_f32": Fit(_log_rest, -0.2929, 0.4143, 8),
    "log_f64": Fit(_log_rest_of_square, 0, 0.02945, 6),
    "pow_log": Fit(_log_rest_after_two_thirds, 0, 0.02945, 7),
    "pow_log_short": Fit(_log_rest_of_square, 0, 0.02945, 4),
    "pow_exp_short": Fit(_exp_rest, -HALF_LN2, HALF_LN2, 6),
    "sin_f32": Fit(_sin_rest, 0, 1, 3),
    "cos_f32": Fit(_cos_rest, 0, 1, 3),
    "sin_f64": Fit(_sin_rest, 0, 0.6169, 5),
    "cos_f64": Fit(_cos_rest, 0, 0.6169, 5),
    "asin_f64": Fit(_asin_rest, 0, 0.25, 13),
    "atan_f64": Fit(_atan_rest, 0, 0.1716, 11),
    "erf_f32": Fit(_erf_rest, 0, 1, 6),
    "erf_f32_tail": Fit(lambda x: mpmath.log(mpmath.erfc(x)), 0.98, 4, 8),
    "erf_f64": Fit(_erf_rest, 0, 1, 13),
    "erfcx_f64": Fit(_scaled_erfcx, -0.78, 0.76, 22),
    "erfinv_center": Fit(lambda w: _erfinv_over_x(w + 3), -3, 3.25, 24),
    "erfinv_middle": Fit(lambda s: _erfinv_over_x((s + mpf(13) / 4) ** 2), -0.76, 0.76, 19),
    "erfinv_tail": Fit(lambda s: _erfinv_over_x((s + 5) ** 2), -1.01, 1.02, 17),
    "lgamma_one": Fit(lambda t: mpmath.loggamma(1 + t) / t, -0.5, 0.5, 28),
    "lgamma_two": Fit(lambda t: mpmath.loggamma(2 + t) / t, -0.5, 1, 23),
    "lgamma_rest": Fit(_stirling_rest, 0, 1 / 64, 7),
    "digamma_root": Fit(_digamma_over_root, -0.5, 0.5, 21),
    "digamma_rest": Fit(_digamma_rest, 0, 0.01, 7),
    "i0_series": Fit(_bessel_series(0), 0, 16, 16),
    "i1_series": Fit(_bessel_series(1), 0, 16, 16),
    "i0_tail": Fit(_bessel_tail(0), 0, 0.125, 23),
    "i1_tail": Fit(_bessel_tail(1), 0, 0.125, 23),
}


def coefficients(fit: Fit) -> list[Number]:
    """Of the powers 0, 1, …, unrounded."""
    with mp.workdps(DIGITS):
        n = fit.degree + 1
        low, high = mpf(fit.low), mpf(fit.high)
        # An even shift keeps every node away from 0, where many of the functions are 0/0.
        nodes = [mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
        points = [(low + high) / 2 + (high - low) / 2 * x for x in nodes]
        points = [x if abs(x) > mpf(10) ** -12 else mpf(10) ** -12 for x in points]
        # Newton's divided differences, then expanded to powers.
        table = [fit.function(x) for x in points]
        for level in range(1, n):
            for k in range(n - 1, level - 1, -1):
                table[k] = (table[k] - table[k - 1]) / (points[k] - points[k - level])
        powers = [mpf(0)] * n
        for k in range(n - 1, -1, -1):
            powers = [
                (powers[i - 1] if i else mpf(0)) - points[k] * powers[i] + (table[k] if i == 0 else 0) for i in range(n)
            ]
        return powers


def relative_error(fit: Fit, powers: list[Number]) -> float:
    """The largest found on a grid, of the unrounded polynomial."""
    with mp.workdps(DIGITS):
        worst = mpf(0)
        for k in range(1, 400):
            x = mpf(fit.low) + (mpf(fit.high) - mpf(fit.low)) * (k + mpf("0.123")) / 400
            true = fit.function(x)
            worst = max(worst, abs((mpmath.polyval(powers[::-1], x) - true) / true))
        return float(worst)


def lines(variable: str, argument: str, powers: list[Number], ctype: str) -> list[str]:
    """C that evaluates the polynomial by Horner's rule."""
    if ctype == "float":
        texts = [f"{numpy.float32(str(mpmath.nstr(c, 30)))!s}f" for c in powers]
        texts = [t if "." in t or "e" in t else t.replace("f", ".0f") for t in texts]
    else:
        texts = [repr(float(c)) for c in powers]
    first, *rest = reversed(texts)
    out = [f"{ctype} {variable} = {first};"]
    fma = "ig_fma_f32" if ctype == "float" else "ig_fma_f64"
    out += [f"{variable} = {fma}({variable}, {argument}, {text});" for text in rest]
    return out


def rewrite(text: str) -> str:
    """The header with every polynomial fitted again."""

    def block(found: re.Match[str]) -> str:
        indent, variable, argument, name, _ = found.groups()
        ctype = "float" if "_f32" in name else "double"
        body = lines(variable, argument, coefficients(FITS[name]), ctype)
        head, tail = f"/* poly {variable}({argument}): {name} */", "/* end */"
        return "".join(f"{indent}{line}\n" for line in [head, *body, tail])

    return BLOCK.sub(block, text)


def main(names: list[str]) -> None:
    for name in names:
        fit = FITS[name]
        print(f"{name}: degree {fit.degree}, relative error {relative_error(fit, coefficients(fit)):.2g}")
    if not names:
        for path in sorted(HEADERS.glob("math_*.h")):
            path.write_text(rewrite(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
