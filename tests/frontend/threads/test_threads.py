"""Captures in several threads, and beside other work in torch: each is as if it ran alone."""

from __future__ import annotations

import copy
import math
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.frontend import dtype_checks
from tests.frontend.threads.shared_state import changed, identities, module_state, thread_state
from tests.frontend.threads.thread_models import CASES, Casting

THREADS = 8
CAPTURES = 500
X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads take turns fifty times as often as they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def _unchanged() -> Iterator[None]:
    ingot.capture(CASES["torch.compile"].model(), (X,))  # the first one imports parts of torch
    torch.compile(torch.sin, backend="eager")(X)
    before = identities(), thread_state()
    yield
    assert changed(before[0]) == []
    assert thread_state() == before[1]


def beside(work: Callable[[threading.Event], Any], body: Callable[[], Any]) -> Any:
    """Runs `body` while another thread works; what that thread returned."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work, stop)
        try:
            body()
        finally:
            stop.set()
        return found.result()


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# ---------------------------------------------------------------------- many at once


@pytest.mark.usefixtures("_unchanged")
def test_eight_threads_capture_and_run_five_hundred_models() -> None:
    alone = {}
    for name, case in CASES.items():
        model, args = case.model(), case.args()
        model(*args)  # what a model computes once and remembers is there before all captures
        alone[name] = str(case.capture(model, args))
    names = list(CASES)
    start = threading.Barrier(THREADS)

    def run(thread: int) -> list[str]:
        start.wait()
        wrong = []
        for number in range(thread, CAPTURES, THREADS):
            name = names[(number * 7 + thread) % len(names)]
            case = CASES[name]
            model, args = case.model(), case.args()
            held = module_state(model)
            program = case.capture(model, args)
            if str(program) != alone[name]:
                wrong.append(f"{name}: another program\n{program}")
            if module_state(model) != held and not case.scripted:
                wrong.append(f"{name}: the model holds something else")
            theirs, ours = model(*args), program(*args)
            try:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        found = [problem for part in pool.map(run, range(THREADS)) for problem in part]
    assert found == []


@pytest.mark.usefixtures("_unchanged")
def test_threads_that_compile() -> None:
    """From the model to native code, in four threads that do different things."""
    names = ("static", "dynamic", "convolution", "buffers")

    def run(name: str) -> None:
        case = CASES[name]
        model, args = case.model(), case.args()
        model.eval()
        compiled = ingot.compile(model, args, threads=1, **case.options)
        for _ in range(20):
            case.capture(model, args)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), copy.deepcopy(model)(*args))
        compiled.close()

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(run, names))


@pytest.mark.usefixtures("_unchanged")
def test_one_model_in_many_threads() -> None:
    model, args = CASES["shared"].model(), (X,)
    held, alone = module_state(model), str(ingot.capture(model, args))
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: str(ingot.capture(model, args)), range(40)))
    assert found == {alone} and module_state(model) == held


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_in_two_threads() -> None:
    torch._dynamo.lookup_backend("ingot")  # torch's own look-up fails if two threads are the first to ask

    def run(name: str) -> None:
        case = CASES[name]
        model, args = case.model().eval(), case.args()
        compiled = torch.compile(model, backend="ingot")
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(compiled(*args), model(*args))
        for _ in range(10):
            case.capture(model, args)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ("static", "convolution")))


# ---------------------------------------------------------------------- beside other work


class Waiting(nn.Module):
    """Lets another thread go when forward has begun, and goes on when that thread is done."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        begun, done = threading.Event(), threading.Event()
        self.signals = lambda: (begun, done)  # not among what a capture puts back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun, done = self.signals()
        begun.set()
        assert done.wait(60)
        return self.linear(x)

    def beside(self, work: Callable[[], Any], capture: Callable[[], Any]) -> tuple[Any, Any]:
        """What the work returned that ran inside forward, in another thread, and what the capture returned."""

        begun, done = self.signals()

        def other() -> Any:
            assert begun.wait(60)
            try:
                return work()
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(other)
            program = capture()
            return found.result(), program


@pytest.mark.usefixtures("_unchanged")
def test_autocast_of_another_thread_is_not_captured() -> None:
    model, linear = Waiting(), nn.Linear(4, 4)

    def work() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return linear(X)

    cast, program = model.beside(work, lambda: ingot.capture(model, (X,)))
    assert cast.dtype is torch.bfloat16
    assert "autocast" not in str(program)
    assert program(X).dtype is torch.float32
    assert torch.equal(program(X), model(X))


@pytest.mark.usefixtures("_unchanged")
def test_autocast_around_a_capture_stays_in_its_thread() -> None:
    model, linear = Waiting(), nn.Linear(4, 4)

    def capture() -> ingot.Program:
        with torch.autocast("cpu", torch.bfloat16):
            return ingot.capture(model, (X,))

    plain, program = model.beside(lambda: linear(X), capture)
    assert plain.dtype is torch.float32
    assert program(X).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(program(X), model(X))


@pytest.mark.usefixtures("_unchanged")
def test_another_thread_sees_nothing_of_a_capture() -> None:
    model, other = Waiting(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    frozen = math.sqrt, math.log, max, torch.compile

    def work() -> dict[str, Any]:
        other(X)
        other.note = 1  # type: ignore[assignment]
        del other.note
        with torch.no_grad(), torch.inference_mode():
            other[0](X)
        return {
            "results": [math.sqrt(9), max(1, 2), math.log(1), float(torch.tensor(2.0)), X.contiguous() is X],
            "pointer": X.data_ptr() == X.untyped_storage().data_ptr() != 0,
            "exporting": torch.compiler.is_exporting() or torch.compiler.is_compiling(),
            "state": thread_state()["dispatch modes"],
            "function": torch.compile(torch.sin, backend="eager") is torch.sin,
            "early": torch._ops._len_torch_dispatch_stack_pre_dispatch(),
        }

    found, program = model.beside(work, lambda: ingot.capture(model, (X,)))
    assert found == {
        "results": [3.0, 2, 0.0, 2.0, True],
        "pointer": True,
        "exporting": False,
        "state": [],
        "function": False,
        "early": 0,
    }
    assert str(program) == str(ingot.capture(model, (X,)))
    assert (math.sqrt, math.log, max, torch.compile) == frozen


def losses(steps: int = 60) -> list[float]:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        x = torch.randn(16, 4) * random.random() + np.random.rand()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.usefixtures("_unchanged")
def test_a_thread_that_trains_gets_the_numbers_that_it_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = in_thread(losses)
    quiet = [name for name in CASES if name != "random"]  # that one shares Python's generator with the training
    models = [(CASES[name], CASES[name].model(), CASES[name].args()) for name in quiet]
    models.append((CASES["dropout"], nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (X,)))
    done = threading.Event()

    def train(_: threading.Event) -> list[float]:
        try:
            return losses()
        finally:
            done.set()

    def body() -> None:
        rounds = 0
        while not done.is_set() or rounds < 1:
            rounds += 1
            for case, model, args in models:
                monkeypatch.setattr(dtype_checks, "_accepted", set())  # as if each were the first capture
                case.capture(model, args)

    assert beside(train, body) == alone


@pytest.mark.usefixtures("_unchanged")
def test_settings_of_another_thread_stay() -> None:
    """What another thread sets while this one captures is still set afterwards."""
    model = Waiting()
    precision, seeds = torch.get_float32_matmul_precision(), torch.get_rng_state()

    def work() -> tuple[Any, ...]:
        torch.set_float32_matmul_precision("medium")
        torch.rand(3), random.random(), np.random.rand()
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    try:
        drawn, _ = model.beside(work, lambda: ingot.capture(model, (X,)))
        assert torch.get_float32_matmul_precision() == "medium"
        assert drawn == (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(seeds)


@pytest.mark.usefixtures("_unchanged")
def test_settings_of_forward_are_put_back_beside_other_threads() -> None:
    class Setting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.set_float32_matmul_precision("medium")
            torch.manual_seed(3), random.random(), np.random.rand()
            return x * 2

    def state() -> tuple[Any, ...]:
        generators = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return torch.get_float32_matmul_precision(), generators

    before = state()
    beside(lambda stop: stop.wait(), lambda: ingot.capture(Setting(), (X,)))
    assert state() == before


@pytest.mark.usefixtures("_unchanged")
def test_filters_of_warnings_are_those_of_before() -> None:
    """Two threads that enter and leave catch_warnings in another order leave a filter behind; captures do not."""

    def work(_: int) -> None:
        for name in ("autocast", "dropout", "lstm", "script"):
            case = CASES[name]
            dtype_checks._accepted.clear()
            case.capture(case.model(), case.args())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


# ---------------------------------------------------------------------- in one thread


@pytest.mark.usefixtures("_unchanged")
def test_a_capture_inside_a_capture() -> None:
    alone = str(ingot.capture(Casting(), (torch.randn(3, 4),)))
    found: list[str] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        inner = ingot.capture(Casting(), (torch.randn(3, 4),))
        found.append(str(inner))
        return x * math.sqrt(x.shape[0])

    program = ingot.capture(forward, (X,), dynamic_shapes={"x": {0: "rows"}})
    assert found and set(found) == {alone}
    y = torch.randn(5, 4)
    torch.testing.assert_close(program(y), y * math.sqrt(5))
