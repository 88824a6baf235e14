"""Which module call the model is in while it runs: the module stack of every node, and the list of calls.

A module that hangs in the tree under several names is known by the name it was reached by: for the time of the
capture, the tables of children that hold such a module note which of their keys are read. In `self.a(self.b(x))`
the name read last is called first; what a loop hands out is called in the loop's order.

A preserved module gets a marker before and after its body, with the leaves of its arguments and of its result.
"""

from __future__ import annotations

import difflib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ingot import torch_internals as internals
from ingot.errors import CaptureError, format_error
from ingot.ir import pytree
from ingot.ir.metadata import ModuleFrame
from ingot.ir.signature import ModuleCall

Marker = Callable[[str, list[Any], dict[str, Any]], None]


class ModuleTracker:
    """Follows the calls of a root module's submodules."""

    def __init__(self, root: nn.Module | None, preserve: Sequence[str] = ()) -> None:
        self.root = root
        self.entry: dict[str, tuple[str, str]] = {}
        self.calls: list[ModuleCall] = []
        self.trees: dict[str, tuple[pytree.Tree, pytree.Tree]] = {}
        self._preserve = frozenset(preserve)
        self._stack: list[ModuleFrame] = []
        self._entries: list[dict[str, tuple[str, str]]] = [self.entry]
        self._counts: dict[str, int] = {}
        self._names: dict[int, list[str]] = {}
        self._reached_by: dict[int, deque[str]] = {}
        self._called_by: dict[int, str] = {}
        if root is not None:
            for name, module in root.named_modules(remove_duplicate=False):
                self._names.setdefault(id(module), []).append(name)
            self._check_preserved(root)

    def _check_preserved(self, root: nn.Module) -> None:
        known = [name for names in self._names.values() for name in names]
        for name in self._preserve:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3)
                raise CaptureError(
                    format_error(
                        f"preserve_module_call_signature names {name!r}, which is not a submodule of "
                        f"{type(root).__name__}.",
                        fix=f"did you mean {', '.join(map(repr, close))}?" if close else "see model.named_modules()",
                    )
                )

    def follow(self, region: internals.Region, boundary: Callable[[], None], mark: Marker) -> None:
        """In the region, calls are followed. `boundary` is called at each border, `mark` writes a preserved call's
        markers."""
        hooks: list[Any] = []
        tables: list[tuple[nn.Module, dict[str, Any]]] = []
        thread = threading.get_ident()  # torch calls hooks of all modules in all threads
        modules = list(self.root.modules()) if self.root is not None else []

        def remove() -> None:
            for hook in hooks:
                hook.remove()
            for module, children in tables:
                module.__dict__["_modules"] = children

        def enter_module(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == thread:
                boundary()
                self._push(module)

        def exit_module(module: nn.Module, args: Any, out: Any) -> None:
            boundary()
            self._pop(module)

        def mark_inputs(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._record_tracepoint("module_call_inputs", (args, kwargs), mark)

        def mark_outputs(module: nn.Module, args: Any, out: Any) -> None:
            if threading.get_ident() != thread:
                return
            # Global hooks run before a module's own, so ours must come first among them to still be inside the call.
            if self._marks(module):
                self._record_tracepoint("module_call_outputs", out, mark)
            exit_module(module, args, out)

        region.defer(remove)
        self._watch_shared_children(tables)  # from here on a look at the children counts as the model's
        if self.root is None:
            return
        registry = nn.modules.module
        hooks.append(registry.register_module_forward_pre_hook(enter_module))
        hooks.append(registry.register_module_forward_hook(mark_outputs, always_call=True))
        for module in modules:
            if self._preserve.intersection(self._names[id(module)]):
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda m, args, kwargs: mark_inputs(m, args, kwargs) if self._marks(m) else None,
                        prepend=True,
                        with_kwargs=True,
                    )
                )

    @contextmanager
    def enter_caller(self, applies: bool = True) -> Iterator[None]:
        """Inside, new nodes belong to the module that called the present one."""
        entry = self.entry
        if applies and len(self._entries) > 1:
            self.entry = self._entries[-2]
        try:
            yield
        finally:
            self.entry = entry

    @contextmanager
    def tentative(self) -> Iterator[None]:
        """What is noted of calls inside is forgotten if it ends with an exception."""
        calls, trees, counts, called = len(self.calls), dict(self.trees), dict(self._counts), dict(self._called_by)
        try:
            yield
        except BaseException:
            del self.calls[calls:]
            self.trees, self._counts, self._called_by = trees, counts, called
            raise

    def find_uncalled(self) -> list[str]:
        """The preserved names that no call went by."""
        called = {call.module for call in self.calls}
        return sorted(name for name in self._preserve if name not in called)

    def other_names(self, name: str) -> str:
        """Which other names a module that is not called by `name` is called by."""
        others = next((names for names in self._names.values() if name in names), [])
        called = sorted({call.module for call in self.calls} & set(others))
        return f"the model calls it as {', '.join(called)}" if called else "forward does not reach it"

    # ------------------------------------------------------------------ the stack

    def _push(self, module: nn.Module) -> None:
        path = self._path_of(module)
        if path is None:
            frame = None
        else:
            self._called_by[id(module)] = path
            if reached := self._reached_by.get(id(module)):
                reached.popleft()
            count = self._counts.get(path, 0)
            self._counts[path] = count + 1
            call = f"{path}@{count}" if count else path
            frame = ModuleFrame(call, path, f"{type(module).__module__}.{type(module).__qualname__}")
            self.calls.append(ModuleCall(call, path, frame.type))
        self._stack.append(frame or ModuleFrame("", "", ""))
        self.entry = self.entry if frame is None else {**self.entry, frame.call: (frame.path, frame.type)}
        self._entries.append(self.entry)

    def _pop(self, module: nn.Module) -> None:
        self._stack.pop()
        self._entries.pop()
        self.entry = self._entries[-1]

    def _path_of(self, module: nn.Module) -> str | None:
        names = self._names.get(id(module))
        if names is None:
            return None  # made inside forward: its nodes belong to the module that created it
        if len(names) == 1:
            return names[0]
        reached = self._reached_by.get(id(module)) or [self._called_by.get(id(module), "")]
        if reached[0] in names:
            return reached[0]
        here = self._stack[-1].path if self._stack else ""
        inside = [name for name in names if not here or name.startswith(f"{here}.")]
        return (inside or names)[0]

    # ------------------------------------------------------------------ shared modules

    def _watch_shared_children(self, tables: list[tuple[nn.Module, dict[str, Any]]]) -> None:
        """Replaces the tables of children that hold a shared module; each is noted in `tables` before."""
        shared = {key for key, names in self._names.items() if len(names) > 1}
        for parent in list(self.root.modules()) if shared and self.root is not None else ():
            children = parent.__dict__["_modules"]
            if any(id(child) in shared for child in children.values()):
                tables.append((parent, children))
                parent.__dict__["_modules"] = _WatchedChildren(
                    children,
                    functools.partial(self._reach, parent),
                    functools.partial(self._forget, parent),
                )

    def _reach(self, parent: nn.Module, child: Any, key: str, looped: bool) -> None:
        if id(child) in self._names:
            self._forget(parent, child, key)
            name = self._name_under(parent, key)
            reached = self._reached_by.setdefault(id(child), deque())
            reached.append(name) if looped else reached.appendleft(name)

    def _forget(self, parent: nn.Module, child: Any, key: str) -> None:
        name, reached = self._name_under(parent, key), self._reached_by.get(id(child), deque())
        if name in reached:
            reached.remove(name)

    def _name_under(self, parent: nn.Module, key: str) -> str:
        path = self._path_of(parent)
        return f"{path}.{key}" if path else key

    # ------------------------------------------------------------------ markers

    def _marks(self, module: nn.Module) -> bool:
        return (
            bool(self._stack)
            and self._stack[-1].path in self._preserve
            and self._stack[-1].path in self._names.get(id(module), ())
        )

    def _record_tracepoint(self, kind: str, value: Any, mark: Marker) -> None:
        leaves, shape = pytree.flatten(value)
        frame = self._stack[-1]
        nothing = pytree.LEAF
        known_in, known_out = self.trees.get(frame.call, (nothing, nothing))
        self.trees[frame.call] = (shape, known_out) if kind == "module_call_inputs" else (known_in, shape)
        mark(kind, leaves, {"kind": kind, "path": frame.path, "call": frame.call})


class _WatchedChildren(dict[str, Any]):
    """A module's table of children that reports each key that is read, and whether a loop reads it."""

    def __init__(
        self,
        children: dict[str, Any],
        report: Callable[[Any, str, bool], None],
        forget: Callable[[Any, str], None],
    ) -> None:
        super().__init__(children)
        self._report = report
        self._forget = forget

    def __getitem__(self, key: str) -> Any:
        child = super().__getitem__(key)
        self._report(child, key, False)
        return child

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def items(self) -> Any:
        children = list(super().items())
        for key, child in children:
            self._forget(child, key)  # an earlier loop may have handed out more than was called
        for key, child in children:
            self._report(child, key, True)
            yield key, child

    def values(self) -> Any:
        return (child for _, child in self.items())
