"""Changes to shared state that act on one thread, and that end whatever happens.

`Patches` replaces functions of modules and classes for the thread that enters it. While any thread holds a patch of an
attribute, a dispatching function stands there: it calls the thread's own replacement, and on every other thread the
original. When the last holder leaves, the very object that was there before is back.

`run_isolated` runs a function and then undoes what that left behind on this thread. Every change is written into the
thread's journal before it is made, and undoing one twice does nothing. So one interrupt at any point, also while things
are put back, is not enough to leave anything behind: the journal is gone through a second time.

What cannot belong to one thread is under a lock: `run_isolated` holds it, so that captures in several threads wait
for each other. These are the module that is captured, which holds fakes meanwhile; settings of the process that the
model's code changes; and torch's compilers, which know functions by identity.

The lock cannot deadlock with others of ours or of torch's. It is one lock, and re-entrant. Before it, and never after,
a thread takes the lock of torch.compile, whose threads take ours when they call a backend; a nested region takes
neither. Inside, torch.compile is off and nothing else of ours blocks. The short lock `_guard` is a leaf: under it only
attributes are set. What remains is the model's own code: a forward that waits for another thread which captures waits
forever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch.jit import _builtins as _script_builtins

T = TypeVar("T")
Key = tuple[int, str]
# Takes what the attribute is on this thread so far and returns what it is from now on.
Make = Callable[[Any], Any]

_MISSING: Any = object()
_lock = threading.RLock()
_guard = threading.RLock()


class _Change(Protocol):
    """A change, written down before it is made."""

    shared: bool  # whether other threads, and a child after a fork, see it

    def undo(self) -> None: ...  # a second time does nothing


class _State:
    """What a thread has changed."""

    def __init__(self) -> None:
        self.chains: dict[Key, list[tuple[Patches, Any]]] = {}
        self.journal: list[_Change] = []
        self.ignored: list[re.Pattern[str]] = []
        self.depth = 0  # of regions


class _Here(threading.local):
    def __init__(self) -> None:
        self.state = _State()


_here = _Here()
_active: set[_State] = set()  # of threads that hold the lock


# ---------------------------------------------------------------------- attributes


@dataclass(frozen=True)
class Shared:
    """A value that stands in an attribute for all threads while one holds it: it finds out itself whose it is."""

    value: Any


@dataclass(eq=False)
class _Slot:
    """An attribute that threads replace."""

    owner: Any
    name: str
    standing: Any  # what is there while it is held
    own: Any = _MISSING  # what was there; missing where it was inherited
    original: Any = None
    holders: set[Patches] = field(default_factory=set)

    def read(self) -> Any:
        if self.name == "__code__":
            return self.owner.__code__
        return vars(self.owner).get(self.name, _MISSING)

    def hold(self, holder: Patches) -> None:
        found = self.read()
        if not self.holders and found is not self.standing:  # else other code saved it and restored it too late
            self.own, self.original = found, getattr(self.owner, self.name)
        first = not self.holders
        self.holders.add(holder)
        if first and found is not self.standing:
            setattr(self.owner, self.name, self.standing)

    def release(self, holder: Patches) -> None:
        self.holders.discard(holder)
        if self.holders or self.read() is not self.standing:  # what others put there since is theirs
            return
        if self.own is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)


_slots: dict[Key, _Slot] = {}


def _slot(owner: Any, name: str, make: Make | Shared) -> _Slot:
    key = (id(owner), name)
    slot = _slots.get(key)
    if slot is None:
        slot = _Slot(owner, name, make.value if isinstance(make, Shared) else None)
        if slot.standing is None:
            slot.standing = _dispatching(slot, key)
        _slots[key] = slot  # for good: what is compiled against the function that stands there keeps its meaning
    return slot


def _dispatching(slot: _Slot, key: Key) -> Callable[..., Any]:
    original = getattr(slot.owner, slot.name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        chain = _here.state.chains.get(key)
        return (chain[-1][1] if chain else slot.original)(*args, **kwargs)

    # TorchScript's compiler knows functions by identity; another thread may run it meanwhile.
    builtin = _script_builtins._find_builtin(original)
    if builtin is not None:
        _script_builtins._register_builtin(call, builtin)
    return call


class Patches(contextlib.AbstractContextManager[None]):
    """Inside, attributes of modules and classes are others on this thread.

    Each is given as owner, name, and a function of what it was that returns what it is. Owners live forever: an
    attribute of something short-lived is changed by `patched`.
    """

    shared = True

    def __init__(self, *patches: tuple[Any, str, Make | Shared]) -> None:
        self._patches = patches
        self._state: _State | None = None

    def __enter__(self) -> None:
        state = self._state = _here.state
        state.journal.append(self)
        for owner, name, make in self._patches:
            with _guard:
                slot = _slot(owner, name, make)
                slot.hold(self)
            chain = state.chains.setdefault((id(owner), name), [])
            previous = chain[-1][1] if chain else slot.original
            chain.append((self, previous if isinstance(make, Shared) else make(previous)))

    def __exit__(self, *exception: object) -> None:
        self.undo()
        state = self._state
        if state is not None and self in state.journal:
            state.journal.remove(self)

    def undo(self) -> None:
        if self._state is None:
            return
        for owner, name, _ in reversed(self._patches):
            key = (id(owner), name)
            chain = self._state.chains.get(key)
            if chain is not None:
                kept = [link for link in chain if link[0] is not self]
                if kept:
                    self._state.chains[key] = kept
                else:
                    self._state.chains.pop(key, None)
            slot = _slots.get(key)
            if slot is not None:  # also if it was released: an interrupt may have come in between
                with _guard:
                    slot.release(self)


def is_patched_here(owner: Any, name: str) -> bool:
    """Whether this thread is inside Patches of an attribute."""
    return (id(owner), name) in _here.state.chains


class ThreadFlag:
    """A truth in an attribute that is true only on threads inside Patches of it."""

    def __init__(self, owner: Any, name: str) -> None:
        self._key = (id(owner), name)

    def __bool__(self) -> bool:
        return self._key in _here.state.chains


# ---------------------------------------------------------------------- warnings


class _IgnoredHere:
    """Stands in a filter in place of a pattern: matches what this thread ignores at the moment."""

    def match(self, text: str) -> bool:
        return any(pattern.match(text) for pattern in _here.state.ignored)


_FILTER: Any = ("ignore", _IgnoredHere(), Warning, None, 0)
_ignoring: set[ignore_warnings] = set()


class ignore_warnings(contextlib.AbstractContextManager[None]):
    """Inside, warnings whose text begins like the pattern are not shown on this thread, nor raised.

    The filters of the warnings module belong to the process, and leaving catch_warnings in two threads in another order
    than it was entered leaves a filter behind. This one filter asks which thread it is.
    """

    shared = True

    def __init__(self, pattern: str = "") -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE | re.DOTALL)
        self._state: _State | None = None

    def __enter__(self) -> None:
        state = self._state = _here.state
        state.journal.append(self)
        state.ignored = [*state.ignored, self._pattern]
        with _guard:
            _ignoring.add(self)
            filters: Any = warnings.filters
            if _FILTER not in filters:
                filters.insert(0, _FILTER)

    def __exit__(self, *exception: object) -> None:
        self.undo()
        if self._state is not None and self in self._state.journal:
            self._state.journal.remove(self)

    def undo(self) -> None:
        if self._state is None or self not in _ignoring:
            return
        self._state.ignored = [pattern for pattern in self._state.ignored if pattern is not self._pattern]
        with _guard:
            if _ignoring == {self}:
                filters: Any = warnings.filters
                while _FILTER in filters:
                    filters.remove(_FILTER)
            _ignoring.discard(self)


# ---------------------------------------------------------------------- regions


class _Deferred:
    def __init__(self, function: Callable[[], None], shared: bool) -> None:
        self.undo = function
        self.shared = shared


class _Entered:
    """A context manager that is left once. What an interrupt keeps from being left, `run_isolated` puts back."""

    shared = False

    def __init__(self, context: contextlib.AbstractContextManager[Any]) -> None:
        self._context = context
        self.entered = False

    def undo(self) -> None:
        if self.entered:
            self.entered = False
            with contextlib.suppress(Exception):  # of a mode that an interrupt took off the stack
                self._context.__exit__(None, None, None)


class _Held:
    """A guard of torch's, which may be left any number of times, entered or not.

    It takes effect when it is made, so nothing else may hold it: an interrupt then either frees it or finds it here.
    """

    shared = False

    def __init__(self) -> None:
        self.guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def undo(self) -> None:
        self.guard.__exit__(None, None, None)


class Region:
    """What `run_isolated` hands to the function it runs: what is entered here is left when the function is done."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> None:
        if isinstance(context, Patches | ignore_warnings):
            context.__enter__()  # writes itself down
            return
        if isinstance(context, contextlib._GeneratorContextManager):
            self.defer(context.gen.close)
            context.__enter__()
            return
        entry = _Entered(context)
        self._state.journal.append(entry)
        context.__enter__()
        entry.entered = True

    def hold(self, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Makes and enters a guard written in C++."""
        entry = _Held()
        self._state.journal.append(entry)
        entry.guard = make()
        entry.guard.__enter__()

    def defer(self, function: Callable[[], None], *, shared: bool = True) -> None:
        """Calls the function afterwards, perhaps twice. `shared`: it puts back what other threads can see."""
        self._state.journal.append(_Deferred(function, shared))


def run_isolated(body: Callable[[Region], T], modes: Callable[[], Callable[[], None]]) -> T:
    """What `body` returns. Afterwards all that it entered is left and the thread's modes are as `modes()` found them.

    One thread at a time. A function and no context manager: an interrupt can keep __exit__ from running.
    """
    state = _here.state
    if state.depth:
        return _undone(state, body, modes)
    # Interrupts come between calls of Python code, and a lock is taken and its `with` entered without one.
    with _lock_of_compilation(), _lock:
        return _undone(state, body, modes)


def _undone(state: _State, body: Callable[[Region], T], modes: Callable[[], Callable[[], None]]) -> T:
    mark, before = len(state.journal), state.depth
    try:
        try:
            try:
                state.depth = before + 1
                _active.add(state)
                region = Region(state)
                region.defer(modes(), shared=False)
                return body(region)
            except BaseException as failure:
                for one in _chain(failure):
                    _close_contexts(one.__traceback__)
                raise
            finally:
                _unwind(state, mark, before)
        finally:
            _unwind(state, mark, before, final=True)
    except Exception as failure:
        interrupt = next((one for one in _chain(failure) if isinstance(one, KeyboardInterrupt)), None)
        if interrupt is not None:  # torch's modes, ending out of order, raised something else on its way
            raise interrupt from None
        raise


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that were being handled when it was raised."""
    while failure is not None:
        yield failure
        failure = failure.__context__


def _close_contexts(trace: types.TracebackType | None) -> None:
    """Ends the context managers that an interrupt kept from ending, torch's own among them.

    Written as generators, they would end when the traceback is freed, and bring back modes that are long gone.
    """
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == contextlib.__file__:
            context = trace.tb_frame.f_locals.get("self")
            generator = getattr(context, "gen", None)  # missing where the interrupt came before it was made
            if isinstance(context, contextlib._GeneratorContextManager) and generator is not None:
                generator.close()
        trace = trace.tb_next


def _unwind(state: _State, mark: int, depth: int, final: bool = False) -> None:
    failure: BaseException | None = None
    for entry in reversed(state.journal[mark:]):
        try:
            entry.undo()
        except BaseException as error:
            failure = failure or error
    state.depth = depth
    if not depth:
        _active.discard(state)
    if failure is None or final:
        del state.journal[mark:]
    if failure is not None:
        raise failure


def _lock_of_compilation() -> contextlib.AbstractContextManager[Any]:
    """torch.compile's lock: it distinguishes functions by identity, so it waits while some are replaced."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    lock: contextlib.AbstractContextManager[Any] | None = getattr(frames, "compile_lock", None)
    return lock if lock is not None else contextlib.nullcontext()


# ---------------------------------------------------------------------- fork


def _reset_child() -> None:
    """In a child there is one thread: what others had locked is free, and what they had changed is changed back."""
    _guard.release()
    others = [state for state in _active if state is not _here.state]
    if others:
        for lock in (_lock, _lock_of_compilation()):
            reset = getattr(lock, "_at_fork_reinit", None)  # as the standard library's own modules do
            if reset is not None:
                reset()
    for state in others:
        for entry in reversed(state.journal):
            if entry.shared:
                with contextlib.suppress(Exception):
                    entry.undo()
        _active.discard(state)


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_reset_child)
