"""Scripts that compute with numbers, lists and text as the interpreter does, some of which are data-dependent."""

import math
from typing import List

import torch

from tests.frontend.torchscript.cases import case, scripted, several

FLOATS = several(*(torch.tensor(v) for v in ([1.0, 2, 3], [-1, -2.5, 7], [0.0, 0, 0], [-9, 3.5, 1.5], [10.0, -3, 2])))
INTS = several(*(torch.tensor(v) for v in ([7, 2, 3], [-7, 2, 3], [7, -2, 5], [-7, -2, 1], [0, 5, 2])))
LENGTHS = ((1, 2, 3, 0), (3, 3, 3, 3), (0, 0, 0, 0), (2, 1, 2, 1), (0, 3, 0, 1))
ROWS = [(torch.randn(n, 3),) for n in (4, 3, 7, 2, 9)]


def arithmetic(x):
    a = int(x[0])
    b = int(x[1])
    c = abs(b)
    return a // b, a % b, a / b, abs(a), min(a, b), max(a, b, 3), divmod(a, b), a << c, a >> c, a & b


def powers(x):
    a = int(x[0])
    return a**2, 2**3, float(a) ** 2.0, 2 ** abs(a), 2**-1


def floats(x):
    a = float(x[1])
    return int(a), round(a), math.floor(a), math.ceil(a), a // 0.75, a % 0.75, math.fabs(a), bool(a), 7


def functions(x):
    a = float(x[1].abs().clamp(max=2.0)) * 0.4
    roots = math.sqrt(a + 1), math.log(a + 1), math.log10(a + 1), math.log1p(a), math.exp(a), math.expm1(a)
    angles = math.asin(a), math.acos(a), math.atan(a), math.tan(a), math.atan2(a, 2.0), math.degrees(a)
    others = math.sinh(a), math.cosh(a), math.erf(a), math.erfc(a), math.copysign(a, -1.0)
    return roots, angles, others, math.isnan(a), math.isfinite(a)


def written(x, sep: str = ","):
    found = {}
    for i, name in enumerate("a,b".split(sep)):
        found["%s_%d" % (name.upper(), i)] = x * i
    print("largest: {}".format(float(x.max())))
    return found


def rows_of_other_lengths(x, n):
    total = torch.zeros(4)
    for b in range(4):
        for t in range(int(n[b])):
            total[b] = total[b] + x[b, t]
    return total


def bools(x):
    p = bool(x.sum() > 0)
    q = bool(x[0] > 0)
    return p and q, p or q, not p, p != q, int(p) + int(q), float(p)


def rarer_functions(x):
    return math.gcd(int(x[0]), 6), math.lgamma(float(x[2]))


def of_sizes(x):
    n = x.size(0)
    return x / math.sqrt(n), x * math.log(float(n)), n**2, -n // 2, n / 3, round(n / 3), abs(2 - n)


def lists(x):
    a = [4, 1]
    a += [3, 9]
    a.append(2)
    a.sort()
    b = sorted(a)
    a.reverse()
    a.remove(9)
    a.sort(reverse=True)
    return x * a[0], a, b, a + b, a.index(3), b.count(3), sum(b), all(a), any([False, True])


def lists_of_the_run(x):
    sums = [float((x * k).sum()) for k in [1, 5, 2]]
    ordered = sorted(sums)
    sums.sort(reverse=True)
    return ordered, sums, sum(sums), max(sums), [int(x[0]), 3, -8, 2].count(3)


def collected(x):
    out: List[torch.Tensor] = []
    for k in range(3):
        out += [x * k]
    return torch.stack(out)


case("int arithmetic at run time", scripted(arithmetic), INTS)
case("powers are floats", scripted(powers), INTS)
case("float arithmetic at run time", scripted(floats), FLOATS)
case("functions of math", scripted(functions), FLOATS, within=1e-14)
case("bools at run time", scripted(bools), FLOATS)
case("rarer functions of math", scripted(rarer_functions), INTS, within=1e-14)
case("text of names", scripted(written), FLOATS)
case(
    "rounds that a row tells",
    scripted(rows_of_other_lengths),
    [
        (torch.randn(4, 3), torch.tensor(n))
        for n in ([1, 2, 3, 0], [3, 3, 3, 3], [0, 0, 0, 0], [2, 1, 2, 1], [0, 3, 0, 1])
    ],
    "while_loop",
)
case("functions of an open size", scripted(of_sizes), ROWS, within=1e-14, dynamic={"x": {0: "n"}})
case("lists in place", scripted(lists), FLOATS)
case("lists of numbers at run time", scripted(lists_of_the_run), FLOATS)
case("list that += extends", scripted(collected), FLOATS)
