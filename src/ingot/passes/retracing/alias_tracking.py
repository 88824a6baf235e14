"""Which tensors of a replayed graph share memory, and what a write through one of them means for the others.

A replay runs on fakes, and fakes share storages as real tensors do: a result that lies in an argument's storage is a
view of it, whatever the operator's schema declares. Views of one tensor form a tree:

    x ── x.view(4, 3) ── [0]        a write through [0] gives new values to [0], to the view, and to x (by inverse
      └─ x[1:]                      views), and x[1:] is out of date: it is computed from x when it is next read

So the graph that is recorded holds no writes. A conditional view is a copy at most sizes: what it and its parent hold
after a write is selected by the sizes (`conditional_views`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.ir import metadata
from ingot.passes.retracing.conditional_views import find_condition
from ingot.passes.retracing.view_inverses import View, find_inverse

aten = torch.ops.aten


class GraphRecorder(Protocol):
    """What tracking needs of a recorder."""

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def append(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> fx.Node: ...
    def argument(self, value: Any) -> Any: ...
    def bind(self, tensor: torch.Tensor, value: torch.Tensor) -> None: ...
    def portable_view(self, func: Any, node: fx.Node) -> Any: ...
    def user_place(self) -> str: ...


class AliasTracker:
    """The views among the tensors of one replay, and which of them are out of date."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._views: dict[int, View] = {}
        self._members: dict[int, list[torch.Tensor]] = {}  # views by the tensor at the top of their tree
        self._outdated: dict[int, torch.Tensor] = {}
        self._written: set[int] = set()

    def is_outdated(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._outdated

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Whether something was written to the memory that a tensor lies in."""
        return id(self.root_of(tensor)) in self._written

    def is_view(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._views

    def has_views(self, tensor: torch.Tensor) -> bool:
        return bool(self._members.get(id(tensor)))

    def root_of(self, tensor: torch.Tensor) -> torch.Tensor:
        while (view := self._views.get(id(tensor))) is not None:
            tensor = view.parent
        return tensor

    # ------------------------------------------------------------------ views

    def add_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Notes which results of a call are views of its arguments."""
        tensors = metadata.tensors_in([*args, *kwargs.values()])
        if not tensors:
            return
        several = isinstance(out, list | tuple)
        for index, result in enumerate(out if several else [out]):
            if not isinstance(result, torch.Tensor) or any(result is tensor for tensor in tensors):
                continue
            parent = find_shared(result, tensors)
            if parent is not None:
                self._add(result, View(func, args, kwargs, parent, out, index if several else None))
            elif internals.copies_by_strides(func) and (condition := find_condition(func, args, kwargs)) is not None:
                self._add(result, View(func, args, kwargs, args[0], out, None, condition))

    def add_same(self, tensor: torch.Tensor, parent: torch.Tensor) -> None:
        """Notes that a tensor is the same view of the same memory as another one."""
        self._add(tensor, View(None, (), {}, parent, None, None))

    def _add(self, tensor: torch.Tensor, view: View) -> None:
        self._views[id(tensor)] = view
        self._members.setdefault(id(self.root_of(tensor)), []).append(tensor)

    def replace(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """Lets `twin` take a tensor's place in its tree, since the tensor is about to become another view."""
        view = self._views.pop(id(tensor), None)
        if view is not None:
            self._views[id(twin)] = view
            members = self._members[id(self.root_of(twin))]
            members[:] = [twin if member is tensor else member for member in members]
        else:
            self._members[id(twin)] = self._members.pop(id(tensor), [])
            if id(tensor) in self._written:
                self._written.add(id(twin))
        if self._outdated.pop(id(tensor), None) is not None:
            self._outdated[id(twin)] = twin
        swap: Callable[[Any], Any] = lambda value: twin if value is tensor else value  # noqa: E731
        for key, known in self._views.items():
            outputs = known.outputs
            outputs = list(map(swap, outputs)) if isinstance(outputs, list | tuple) else swap(outputs)
            args = tuple(map(swap, known.args))
            self._views[key] = known._replace(parent=swap(known.parent), args=args, outputs=outputs)

    # ------------------------------------------------------------------ reads and writes

    def refresh(self, tensor: torch.Tensor) -> None:
        """Computes a tensor that is out of date from the one that it is a view of."""
        del self._outdated[id(tensor)]
        view = self._views[id(tensor)]
        recorder = self._recorder
        if view.func is None:
            recorder.bind(tensor, view.parent)
            return
        if view.condition is not None:
            shown = self._emit(aten.reshape.default, view.parent, list(tensor.shape))
            recorder.bind(tensor, self._select(view, shown, tensor))
            return
        self._check_repeatable(view)
        args, kwargs = recorder.argument(view.args), recorder.argument(view.kwargs)
        for output in metadata.tensors_in(view.outputs):
            self._outdated.pop(id(output), None)
        recorder.append(recorder.portable_view(view.func, args[0]), args, kwargs, view.outputs)

    def store(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        """Makes `new` what a tensor holds, and with it all that share its memory.

        A view whose new value has other strides is out of date as well: read through the view again, it has those of
        eager, and kernels that add in the order of memory give the same bits.
        """
        chain = [tensor]
        while (view := self._views.get(id(chain[-1]))) is not None:
            chain.append(view.parent)
        if internals.overlaps_itself(tensor):
            self._refuse_overlap()
        now = {id(tensor): (tensor, new)}
        position, value = 0, new
        while position < len(chain) - 1:
            position, value = self._parent_value(chain, position, value)
            now[id(chain[position])] = (chain[position], value)
        root = chain[-1]
        self._written.add(id(root))
        for member in self._members.get(id(root), ()):
            self._outdated[id(member)] = member
        for known, held in now.values():
            if known is root or internals.same_strides(known, held) or self._holds_value(self._views[id(known)]):
                self._outdated.pop(id(known), None)
                self._recorder.bind(known, held)

    def _parent_value(self, chain: list[torch.Tensor], position: int, value: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The place in the chain of the next tensor up that can be computed, and what it holds."""
        first = self._views[id(chain[position])]
        if first.condition is not None:
            below = self._emit(aten.reshape.default, value, list(first.parent.shape))
            return position + 1, self._select(first, below, first.parent)
        above = itertools.takewhile(
            lambda view: view.condition is None, (self._views[id(t)] for t in chain[position:-1])
        )
        views = list(above)
        inverses = [find_inverse(view, chain[position + place]) for place, view in enumerate(views)]
        missing = [place for place, inverse in enumerate(inverses) if inverse is None]
        if missing:
            # From the topmost view without an inverse all the way down: which of its elements was written, only the
            # views below it show.
            top = missing[-1]
            return position + top + 1, self._scatter(views[: top + 1], chain[position], value)
        inverse = inverses[0]
        assert inverse is not None
        return position + 1, inverse(self._emit, views[0], value)

    def _select(self, view: View, shared: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        """A value where a conditional view is a view, and another one where it is a copy."""
        number = self._emit(aten.scalar_tensor.default, view.condition, dtype=torch.int64, device=apart.device)
        is_view = self._emit(aten.eq.Scalar, number, 0)
        return self._emit(aten.where.self, is_view, shared, apart)

    def _scatter(self, views: list[View], tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What the parent of the last view holds after a write to the first: elements are scattered by position."""
        parent = views[-1].parent
        if not isinstance(math.prod(tensor.shape), int) and any(v.func in _WINDOWS for v in views):
            self._refuse_overlap()
        positions = self._emit(aten.arange.default, math.prod(parent.shape), dtype=torch.int64, device=parent.device)
        positions = self._emit(aten.reshape.default, positions, list(parent.shape))
        for view in reversed(views):
            if view.func is None:
                continue
            self._check_repeatable(view)
            above, below = view.parent, positions
            args = tuple(below if argument is above else argument for argument in view.args)
            made = self._emit(view.func, *args, **view.kwargs)
            positions = made if view.position is None else made[view.position]
        if positions.dtype is not torch.int64 or list(positions.shape) != list(tensor.shape):
            self._refuse(f"{views[-1].func} has no inverse")
        flat = self._emit(aten.reshape.default, parent, [-1])
        places = self._emit(aten.reshape.default, positions, [-1])
        values = self._emit(aten.reshape.default, value, [-1])
        written = self._emit(aten.index_put.default, flat, [places], values)
        return self._emit(aten.reshape.default, written, list(parent.shape))

    def _emit(self, func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = self._recorder.record(func, args, kwargs)
        return made

    def _check_repeatable(self, view: View) -> None:
        if not self._is_repeatable(view):
            self._refuse("as_strided of a tensor that is not contiguous, or is a view itself")

    def _is_repeatable(self, view: View) -> bool:
        """An as_strided view addresses memory, and can be recomputed on values only where these lie as they did."""
        if view.func is not aten.as_strided.default:
            return True
        parent = view.parent
        return parent.is_contiguous() and parent.storage_offset() == 0 and not self.is_view(parent)

    def _holds_value(self, view: View) -> bool:
        """Whether what was written to a view is to be kept, since reading its parent would not give it again."""
        return view.condition is not None or not self._is_repeatable(view)

    def _refuse_overlap(self) -> None:
        self._refuse("several elements of the tensor that is written lie in one place of memory")

    def _refuse(self, why: str) -> None:
        raise PassError(
            format_error(
                "A write through a view cannot be expressed without writes.",
                where=self._recorder.user_place(),
                why=why,
                fix="write to the tensor itself, or to a clone of the view",
            )
        )


_WINDOWS = (aten.unfold.default, aten.as_strided.default)


def find_shared(result: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """The argument that a result shares memory with: one that is the same view, or the first."""
    if result.layout is not torch.strided:
        return None
    storage = internals.storage_id(result)
    sharing = [t for t in tensors if t.layout is torch.strided and internals.storage_id(t) == storage]
    return next((t for t in sharing if internals.same_memory(t, result)), sharing[0] if sharing else None)
