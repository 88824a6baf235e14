"""What eager refuses for its dtypes, capture refuses: fake kernels check less than real ones."""

from __future__ import annotations

import contextlib
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import ingot
from ingot.errors import EagerError, IngotError
from ingot.frontend import dtype_checks

X = torch.Tensor
INDEX = torch.tensor([0])
REFUSED: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "mm": (torch.mm, (torch.ones(2, 3), torch.ones(3, 3, dtype=torch.int64))),
    "large mm": (torch.mm, (torch.ones(200, 300), torch.ones(300, 300, dtype=torch.int64))),
    "matmul": (torch.matmul, (torch.ones(2, 3).double(), torch.ones(3))),
    "linear": (F.linear, (torch.ones(2, 3), torch.ones(4, 3).bfloat16())),
    "conv2d": (F.conv2d, (torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3).double())),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (torch.ones(1, 1, 4, 4, dtype=torch.bool),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (torch.ones(1, 1, 4, dtype=torch.bool),)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, 2), (torch.ones(1, 1, 4, 4, dtype=torch.int64),)),
    "interpolate": (lambda x: F.interpolate(x, (3, 3), mode="bilinear"), (torch.ones(1, 1, 5, 5, dtype=torch.int64),)),
    "index_put": (lambda x, v: x.index_put((INDEX,), v), (torch.ones(3, dtype=torch.int64), torch.ones(1))),
    "setitem": (lambda x, v: x.clone().__setitem__(INDEX, v), (torch.ones(3), torch.ones(1).double())),
    "index_copy": (lambda x, v: x.index_copy(0, INDEX, v), (torch.ones(3), torch.ones(1).double())),
    "index_add": (lambda x, v: x.index_add(0, INDEX, v), (torch.ones(3), torch.ones(1).double())),
    "put": (lambda x, v: x.put(INDEX, v), (torch.ones(3), torch.ones(1).double())),
    "mul_": (lambda x, v: x.clone().mul_(v), (torch.ones(3, dtype=torch.int64), torch.ones(3))),
    "cumsum": (lambda x: x.cumsum(0, dtype=torch.bool), (torch.ones(3),)),
    "softmax": (lambda x: torch.softmax(x, 0), (torch.ones(3, dtype=torch.int64),)),
    "ldl_factor": (torch.linalg.ldl_factor, (torch.eye(3).half(),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    model, args = REFUSED[name]
    with pytest.raises((RuntimeError, NotImplementedError)):
        model(*args)
    for _ in range(2):
        with pytest.raises(EagerError, match=r"test_dtype_regressions|_compile|functional|op\("):
            ingot.capture(lambda *xs: model(*xs), args)


def test_what_eager_takes_under_autocast_is_taken() -> None:
    def model(x: X, w: X) -> X:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mm(x, w)

    args = (torch.ones(2, 3), torch.ones(3, 3).bfloat16())
    assert ingot.capture(model, args)(*args).dtype is torch.bfloat16
    with pytest.raises(EagerError):
        ingot.capture(torch.mm, args)


def test_asking_draws_no_random_numbers_and_warns_of_nothing() -> None:
    def model(x: X) -> X:
        return F.dropout(x.div(2) + torch.rand_like(x), 0.3, training=True) + torch.bernoulli(x)

    dtype_checks._accepted.clear()
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ingot.capture(model, (torch.ones(3),))
    assert torch.equal(state, torch.get_rng_state())


def test_what_the_check_mistakes_is_captured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype_checks, "_ask", lambda trials, dtypes: "no reason")
    monkeypatch.setattr(dtype_checks, "_accepted", set())
    x = torch.ones(3)
    assert torch.equal(ingot.capture(lambda x: x.exp().sin() + 1, (x,))(x), x.exp().sin() + 1)


def test_kernels_are_not_asked_about_nothing() -> None:
    """Torch 2.11's own attention without heads ends the process."""
    x = torch.empty(3, 0, 1, 2)
    program = ingot.capture(lambda x: F.scaled_dot_product_attention(x, x, x), (x,))
    assert ingot.compile(program, threads=1)(x).shape == x.shape


def test_what_is_empty_teaches_nothing_about_what_is_not() -> None:
    def multiply(x: X, y: X) -> X:
        return torch.bmm(x, y)

    with contextlib.suppress(IngotError):  # eager takes this
        ingot.capture(multiply, (torch.ones(1, 0, 3), torch.ones(1, 3, 2, dtype=torch.int64)))
    with pytest.raises(EagerError, match="expected"):
        ingot.capture(multiply, (torch.ones(1, 2, 3), torch.ones(1, 3, 2, dtype=torch.int64)))


def test_capture_takes_no_longer() -> None:
    """A combination is asked about once in a process; then it is a look into a table."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(30)))
    args = (torch.ones(2, 64),)
    ingot.capture(model, args)
    known = len(dtype_checks._accepted)
    spent = 0.0
    original = dtype_checks.check_dtypes

    def timed(*given: Any) -> None:
        nonlocal spent
        start = time.perf_counter()
        original(*given)
        spent += time.perf_counter() - start

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("ingot.frontend.tracer"), "check_dtypes", timed)
        start = time.perf_counter()
        ingot.capture(model, args)
        whole = time.perf_counter() - start
    assert len(dtype_checks._accepted) == known
    assert spent < 0.2 * whole


# ---------------------------------------------------------------------- a sweep

DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16, torch.float64, torch.bfloat16)


def variants(op: Any) -> Any:
    """Of one sample of an operator: functions of tensors, one of which has another dtype."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    sample = next(iter(op.sample_inputs("cpu", dtype)), None) if dtype is not None else None
    if sample is None:
        return
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, X)]

    def call(*tensors: X) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, spec)
        return op.op(first, *args, **kwargs)

    for changed in range(min(len(places), 3)):
        for other in DTYPES:
            tensors = [leaves[place].detach().clone() for place in places]
            if tensors[changed].dtype is not other and not tensors[changed].is_complex():
                tensors[changed] = tensors[changed].to(other)
                yield call, tuple(tensors)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_no_operator_is_captured_that_eager_refuses(part: int) -> None:
    missed = []
    ops = [op for op in op_db if "jiterator" not in op.name and "sparse" not in op.name]
    for op in ops[::29] if part == 0 else ops[part::3]:
        for call, tensors in variants(op):
            try:
                call(*(t.clone() for t in tensors))
            except Exception:
                try:
                    ingot.capture(call, tensors)
                except IngotError:
                    continue
                missed.append((op.name, [t.dtype for t in tensors]))
    assert not missed
