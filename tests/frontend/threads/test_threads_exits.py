"""However a capture ends, what it had changed is as it was before."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import CaptureError, IngotError
from tests.frontend.threads.shared_state import changed, identities, module_state, thread_state
from tests.frontend.threads.thread_models import CASES, Casting, Counting, Scaled

X = torch.ones(2, 4)
ROWS = {"x": {0: "rows"}}


class Everything(nn.Module):
    """Enters all that a capture follows."""

    def __init__(self) -> None:
        super().__init__()
        self.cast, self.count, self.scaled = Casting(), Counting(), Scaled()
        self.again = self.scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.cast(x).sum() + self.again(self.count(x))
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


class Check:
    """What is compared before and after."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.held, self.values = module_state(model), {k: v.clone() for k, v in model.state_dict().items()}
        self.attributes, self.state = identities(), thread_state()

    def differences(self) -> list[str]:
        now = thread_state()
        found = changed(self.attributes)
        found += [name for name, value in self.state.items() if now[name] != value]
        found += ["module"] if module_state(self.model) != self.held else []
        found += [k for k, v in self.model.state_dict().items() if not torch.equal(v, self.values[k])]
        return found


# Files whose code changes something and changes it back.
_FILES = (
    *(f"/ingot/torch_internals/{name}.py" for name in ("isolation", "modes", "monkeypatches", "process_state")),
    *("/ingot/torch_internals/symbolic_indexing.py", "/ingot/frontend/trace.py", "/ingot/frontend/module_state.py"),
    *("/ingot/frontend/state_snapshot.py", "/ingot/frontend/module_stack.py", "/ingot/frontend/control_flow.py"),
    *("/ingot/frontend/source_locations.py", "/ingot/passes/retracing/retrace.py", "/ingot/passes/manager.py"),
    *("/ingot/api.py", "/thread_models.py", "/contextlib.py"),
)


def _may_abort(frame: Any) -> bool:
    """Whether torch ends the process if an interrupt comes here: C++ code that takes no exception calls Python, for the
    truth of a SymBool, or a context manager inside a mode does not end."""
    generated = frame.f_code.co_filename.endswith("/contextlib.py")
    while frame is not None:
        code = frame.f_code
        if "/torch/fx/experimental/sym" in code.co_filename or (generated and code.co_name == "__torch_dispatch__"):
            return True
        frame = frame.f_back
    return False


class Interrupt:
    """Raises KeyboardInterrupt at the n-th place where Python would: where a function begins, and after a call of C."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.count = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(_FILES):
            self.count += 1
            if self.count == self.after:
                if _may_abort(frame):
                    self.after += 1
                else:
                    raise KeyboardInterrupt

    def run(self, work: Callable[[], Any]) -> BaseException | None:
        """What the work ended with; its traceback lives on, as in a debugger."""
        sys.setprofile(self)
        try:
            work()
        except BaseException as failure:
            sys.setprofile(None)
            return failure
        finally:
            sys.setprofile(None)
        return None


def works() -> dict[str, Callable[[nn.Module], Any]]:
    def transform(model: nn.Module) -> Any:
        program = ingot.capture(model, (X,))
        return lambda: ingot.transform(program, [ingot.passes.functionalize, ingot.passes.decompose])

    return {
        "capture": lambda model: lambda: ingot.capture(model, (X,)),
        "dynamic": lambda model: lambda: ingot.capture(model, (X,), dynamic_shapes=ROWS),
        "failing": lambda model: lambda: ingot.capture(lambda x: model(x).tolist()[0], (X,)),
        "passes": transform,
    }


@pytest.fixture(autouse=True)
def _imported() -> None:
    torch.compile(torch.sin, backend="eager")(X)  # the first one of a process patches nn.Module for good
    ingot.transform(ingot.capture(Everything(), (X,)), [ingot.passes.functionalize, ingot.passes.decompose])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where a generator is freed
@pytest.mark.parametrize("step", [13, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", works())
def test_an_interrupt_at_any_point(name: str, step: int) -> None:
    model = Everything()
    work = works()[name](model)
    Interrupt(0).run(work)
    counter = Interrupt(0)
    counter.run(work)
    total = counter.count
    assert total > 1000
    check = Check(model)
    # Places near both ends, where things are changed and changed back, and some in the middle.
    middle = range(700, total, max(total * step // 180, 1))
    places = {*range(1, 700, step), *range(max(total - 900, 700), total + 1, step), *middle}
    wrong = {}
    for place in sorted(places):
        failure = Interrupt(place).run(work)
        found = check.differences()
        if found:
            wrong[place] = found, failure and traceback.format_tb(failure.__traceback__)[-6:]
            break
        assert failure is None or isinstance(failure, KeyboardInterrupt | IngotError), failure
    assert wrong == {}
    _works_elsewhere()


def _works_elsewhere() -> None:
    """No lock is held: another thread captures."""
    with ThreadPoolExecutor(1) as pool:
        program = pool.submit(ingot.capture, Scaled(), (X,)).result(60)
    assert program(X).shape == (2, 4)


def depth() -> int:
    return len(inspect.stack(0))


def test_recursion_that_goes_too_deep() -> None:
    """Wherever the stack ends: in the model, in a capture that has just begun, or in one that ends."""
    model = Everything()
    check, limit = Check(model), sys.getrecursionlimit()
    outcomes = set()
    for extra in range(8, 330, 3):
        sys.setrecursionlimit(depth() + extra)
        try:
            ingot.capture(model, (X,), dynamic_shapes=ROWS)
            outcomes.add("captured")
        except (RecursionError, IngotError) as failure:
            outcomes.add(type(failure).__name__)
        finally:
            sys.setrecursionlimit(limit)
        assert check.differences() == [], extra
    assert "RecursionError" in outcomes and "captured" in outcomes
    _works_elsewhere()


class Failing(nn.Module):
    def __init__(self, failure: type[BaseException], model: nn.Module) -> None:
        super().__init__()
        self.model, self.failure = model, failure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            self.model(x)
            raise self.failure("on purpose")


class Unusual(BaseException):
    pass


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, Unusual, RecursionError])
def test_an_exception_in_forward(failure: type[BaseException]) -> None:
    model = Failing(failure, Everything())
    check = Check(model)
    expected = CaptureError if issubclass(failure, Exception) else failure
    for _ in range(3):
        with pytest.raises(expected) as caught:
            ingot.capture(model, (X,))
        assert check.differences() == [] and caught.value is not None
    _works_elsewhere()


class Clumsy(nn.Module):
    """Like torch's modes, which raise errors of their own when an interrupt keeps an inner one from ending."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            raise KeyboardInterrupt
        finally:
            raise AssertionError("out of order")


def test_an_interrupt_that_causes_another_error_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        ingot.capture(Clumsy(), (X,))


def test_exceptions_in_several_threads() -> None:
    model = Everything()
    check = Check(model)

    def run(number: int) -> str:
        try:
            failing = Failing((ValueError, KeyboardInterrupt, Unusual)[number % 3], Everything())
            return str(ingot.capture(model if number % 2 else failing, (X,)))
        except BaseException as failure:
            return type(failure).__name__

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(run, range(24)))
    assert found == {"EagerError", "KeyboardInterrupt", "Unusual", str(ingot.capture(model, (X,)))}
    assert check.differences() == []


# ---------------------------------------------------------------------- fork


class Waiting(nn.Module):
    def __init__(self, signals: Callable[[], tuple[threading.Event, threading.Event]]) -> None:
        super().__init__()
        self.linear, self.signals = nn.Linear(4, 4), signals

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun, done = self.signals()
        begun.set()
        assert done.wait(60)
        return self.linear(x)


@pytest.fixture
def _deadline() -> Iterator[None]:
    yield
    signal.alarm(0)


def in_child(work: Callable[[], bool]) -> int:
    """The exit code of a child of this process that does something: 0 if it was right."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.alarm(60)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_process_that_captures_in_another_thread() -> None:
    begun, done = threading.Event(), threading.Event()
    model = Waiting(lambda: (begun, done))
    check = Check(model)
    expected = str(ingot.capture(Scaled(), (X,)))

    def work() -> bool:
        free = str(ingot.capture(Scaled(), (X,))) == expected
        compiled = torch.compile(torch.sin, backend="eager")(X).shape == X.shape
        return free and compiled and check.differences() == []

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(ingot.capture, model, (X,))
        assert begun.wait(60)
        try:
            code = in_child(work)
        finally:
            done.set()
        program = found.result()
    assert code == 0
    assert torch.equal(program(X), model(X))
    assert check.differences() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_begins_inside_forward_goes_on_with_the_capture() -> None:
    codes: list[int] = []
    expected = str(ingot.capture(lambda x: x * 2, (X,))).partition("def ")[2]

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not codes:
            codes.append(in_child(lambda: torch.compiler.is_exporting() and (x * 2).shape == x.shape))
        return x * 2

    before = identities(), thread_state()
    program = ingot.capture(forward, (X,))
    assert codes == [0]
    assert expected.split("->")[0][:7] == str(program).partition("def ")[2][:7]
    assert changed(before[0]) == [] and thread_state() == before[1]
    assert CASES["static"] is not None
