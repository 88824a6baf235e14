"""A slice of torch's operator samples as native code; all of them: `make opinfo-native`."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import pytest
import torch

import ingot
from tests.support.operator_samples.batched_compile import Outcome, run
from tests.support.operator_samples.core_aten import outside
from tests.support.operator_samples.samples import (
    Case,
    Expectation,
    cases,
    expectation,
    fresh,
    judge,
    operators,
    run_by_eager,
)

_run = subprocess.run
# A few of every family that has rules of its own.
SLICE = [
    *("add", "div.floor_rounding", "where", "clamp", "bitwise_and", "remainder", "pow", "frexp", "signbit"),
    *("sum", "var_mean", "argmax", "softmax.with_dtype", "native_layer_norm", "logsumexp"),
    *("cat", "repeat", "roll", "nn.functional.pad.circular", "nn.functional.pad.reflect", "as_strided_scatter"),
    *("gather", "index_put", "index_add", "scatter", "scatter_reduce.mean", "masked_scatter", "select_scatter"),
    *("sort", "topk", "median", "searchsorted", "cumsum", "cummax", "logcumsumexp", "nonzero_static", "histc"),
    *("nn.functional.max_pool2d", "nn.functional.avg_pool2d", "nn.functional.adaptive_max_pool2d"),
    *("nn.functional.interpolate.bilinear", "nn.functional.conv2d", "bmm", "addbmm", "cdist", "linalg.solve"),
    *("linalg.qr", "linalg.svd", "linalg.cholesky", "randn", "nn.functional.dropout", "isclose", "quantile"),
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    chosen = [case for name in SLICE for case in cases([name], most=1, kinds=("plain", "scalar"))]
    return {str(case): outcome for case, outcome in run(chosen)}


def test_a_slice_gives_torchs_numbers(outcomes: dict[str, Outcome]) -> None:
    bad = {name: outcome.reason for name, outcome in outcomes.items() if outcome.kind in ("wrong", "crashed")}
    assert not bad


def test_most_of_the_slice_is_compiled(outcomes: dict[str, Outcome]) -> None:
    refused = {name: outcome.reason for name, outcome in outcomes.items() if outcome.kind == "refused"}
    assert len(outcomes) > 150
    assert len(refused) <= len(outcomes) // 20, refused


def _one(name: str, number: int, dtype: torch.dtype = torch.float32) -> Case:
    return next(case for case in cases([name], [dtype], ("plain",)) if case.number == number)


def test_samples_share_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one does not compile, halves tell which: the sweep takes four times as long where none can share a file."""
    compiled = []
    monkeypatch.setattr(subprocess, "run", lambda command, **given: compiled.append(command) or _run(command, **given))
    chosen = [case for name in SLICE for case in cases([name], [torch.float32], ("plain",), 1)]
    assert all(outcome.kind in ("passed", "refused") for _, outcome in run(chosen))
    assert len([command for command in compiled if "-shared" in command]) == 1


def test_a_wrong_number_is_seen() -> None:
    case = _one("exp", 0)
    expected = expectation(case)
    assert expected is not None
    right = [expected.own[0].clone()]
    assert judge(case, expected, right) is None
    right[0][right[0].argmax()] *= 1 + 1e-5
    assert "differ" in str(judge(case, expected, right))


def test_a_misplaced_nan_is_seen() -> None:
    case = _one("exp", 0)
    own = torch.tensor([1.0, torch.nan, torch.inf])
    expected = Expectation((own,), (own.double(),), False)
    assert judge(case, expected, [own.clone()]) is None
    assert judge(case, expected, [torch.tensor([torch.nan, torch.nan, torch.inf])]) is not None
    assert judge(case, expected, [torch.tensor([1.0, torch.nan, -torch.inf])]) is not None


def test_a_wrong_dtype_or_shape_is_seen_even_of_a_random_result() -> None:
    case = _one("exp", 0)
    own = torch.zeros(3)
    expected = Expectation((own,), (own.double(),), True)
    assert judge(case, expected, [torch.ones(3)]) is None
    assert judge(case, expected, [torch.ones(4)]) is not None
    assert judge(case, expected, [torch.ones(3, dtype=torch.float64)]) is not None


def test_samples_are_the_same_in_every_run() -> None:
    first, second = (_one("index_put", 0), _one("index_put", 0))
    assert first.name == second.name
    assert all(torch.equal(a, b) for a, b in zip(first.args, second.args, strict=True))
    assert len(operators()) > 500


def test_elements_are_judged_one_by_one() -> None:
    """Next to a large element, the error of a small one is lost in a bound that scales with the largest."""
    own = torch.tensor([1e-6, 1e6])
    expected = Expectation((own,), (own.double(),), False)
    off = torch.tensor([1.00001e-6, 1e6])
    assert judge(_one("exp", 0), expected, [off]) is not None
    assert judge(_one("exp", 0), expected, [torch.nextafter(own, off)]) is None
    assert judge(_one("matmul", 0), expected, [off]) is None  # sums of many products: as large as the largest


def test_a_sum_of_many_terms_is_judged_by_how_it_rounds() -> None:
    """Terms that cancel leave their roundings behind; terms that do not do not excuse it."""

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return ((x * x * x).sum(),)

    torch.manual_seed(0)
    case = replace(_one("sum", 0), module=Sum(), args=(torch.randn(1 << 14) * 8,))
    expected = expectation(case)
    assert expected is not None
    exact, noise = expected.exact[0], 2**-24 * 3 * 8**3 * (15 * case.args[0].numel()) ** 0.5
    lucky = replace(expected, own=(exact.float(),))
    assert judge(case, lucky, [(exact + noise).float()]) is None
    assert judge(case, lucky, [(exact + 40 * noise).float()]) is not None
    same_sign = replace(case, args=(case.args[0].abs(),))
    expected = expectation(same_sign)
    assert expected is not None
    off = expected.exact[0] * (1 + 16 * 2**-23)  # sqrt(n)/4 · FLOOR would have let 190 of them pass
    assert judge(same_sign, replace(expected, own=(expected.exact[0].float(),)), [off.float()]) is not None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("exp", ()),
        ("nn.functional.layer_norm", ()),
        ("t", ()),
        ("linalg.eig", ("aten.linalg_eig.default",)),
        ("special.airy_ai", ("aten.special_airy_ai.default",)),
    ],
)
def test_which_samples_reach_core_aten(name: str, why: tuple[str, ...]) -> None:
    case = _one(name, 0)
    program = ingot.capture(case.module, fresh(case))
    assert outside(case, program) == outside(case, None) == why


def test_a_sample_that_no_capture_takes_does_not_reach_core_aten() -> None:
    (why,) = outside(_one("nn.functional.gaussian_nll_loss", 0), None)
    assert why.startswith("torch.export: ")
    assert outside(_one("exp", 0), None) == ()


def test_inputs_that_crash_torch_are_skipped() -> None:
    class Dies(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            if a.numel() == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            if a.numel() == 2:
                raise ValueError("no")
            return a

    case = _one("exp", 0)
    made = [replace(case, module=Dies(), args=(torch.zeros(n),)) for n in (3, 1, 2, 1, 4)]
    assert run_by_eager(made) == [True, False, False, False, True]


def test_a_sum_is_judged_as_models_are_compiled() -> None:
    """Without the optimizer it is added up one element after another, which rounds more often than eager does."""
    case = _one("nn.functional.poisson_nll_loss", 70, torch.int64)
    ((_, outcome),) = run([case])
    assert outcome.kind == "passed", outcome.reason
