"""The modules of an unflattened hierarchy, and what their graphs call: children, or control flow that calls them.

unflatten.py makes them. A preserved module is called as the model called it, so any module with that signature may be
put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.analysis.side_effects import explain_assertions
from ingot.errors import UnflattenError, format_error
from ingot.interop.module import tensor_at
from ingot.interop.train_eval import switch_mode
from ingot.ir import execution, pytree, subgraphs
from ingot.ir.signature import CallSignature, InputKind

if TYPE_CHECKING:
    from ingot.ir.program import Program


@dataclass(slots=True)
class CallBody:
    """The graph of one call. `state` names its local tensors; `outputs` counts what it returns."""

    call: str
    path: str
    signature: CallSignature | None = None
    graph: fx.GraphModule | None = None
    state: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    switched: dict[bool, fx.GraphModule] = field(default_factory=dict)

    @property
    def shown_outputs(self) -> list[str]:
        """The outputs that the caller of a preserved module gets through its signature, in the order of its leaves."""
        assert self.signature is not None
        return [value.name for value in self.signature.outputs if value.kind != "literal"]


@dataclass(frozen=True, slots=True)
class _Pending:
    """Which call of which module is about to run, and the hidden values for it."""

    module: nn.Module
    body: CallBody
    hidden: tuple[Any, ...]
    returned: list[Any]


_PENDING: ContextVar[_Pending | None] = ContextVar("pending", default=None)
_ROOT: ContextVar[Unflattened | None] = ContextVar("root", default=None)  # the module that the user called


class Unflattened(nn.Module):
    """A module of the rebuilt hierarchy: its own state and children, and a body for each time it was called.

    Called by itself it runs the first of them. `plans` are the bodies of all modules of the hierarchy.
    """

    path: str
    type_name: str
    captured_training: bool
    bodies: dict[str, CallBody]
    plans: dict[str, CallBody]

    def __init__(self, path: str, type_name: str, training: bool) -> None:
        super().__init__()
        self.training = training
        plain = vars(self)  # bodies are not submodules
        plain["path"] = path
        plain["type_name"] = type_name
        plain["captured_training"] = training
        plain["bodies"] = {}
        plain["plans"] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        pending = _PENDING.get()
        if pending is None or pending.module is not self:
            with explain_assertions(), internals.restore_modes(), _as_root(self):
                return self._call(_Pending(self, self._body_alone(), (), []), args, kwargs)
        _PENDING.set(None)
        return self._call(pending, args, kwargs)

    def _body_alone(self) -> CallBody:
        """The body that runs where the user calls this module by itself."""
        body = next(iter(self.bodies.values()), None)
        if body is not None and not body.hidden:
            return body
        why = "the program calls it nowhere" if body is None else f"it uses {', '.join(body.hidden)} of those around it"
        raise UnflattenError(
            format_error(f"The module {self.path} cannot be called by itself.", why=why, fix="call the whole model")
        )

    def _call(self, pending: _Pending, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body = pending.body
        if body.signature is None:
            arguments = list(args)
        else:
            leaves, given = pytree.flatten((args, kwargs))
            pytree.check_same(body.signature.in_tree, given)
            arguments = [x for x, v in zip(leaves, body.signature.inputs, strict=True) if v.kind != "literal"]
        values = self._run(body, [*arguments, *pending.hidden])
        pending.returned.extend(values)
        if body.signature is None:
            return values[0] if len(values) == 1 else tuple(values)
        named = dict(zip(body.outputs, values, strict=True))
        results = [v.literal if v.kind == "literal" else named[v.name] for v in body.signature.outputs]
        return pytree.unflatten(results, body.signature.out_tree)

    def _run(self, body: CallBody, values: Sequence[Any]) -> list[Any]:
        state = [tensor_at(self, name) for name in body.state]
        return list(self._graph(body)(*state, *values))

    def _graph(self, body: CallBody) -> fx.GraphModule:
        assert body.graph is not None
        if self.training == self.captured_training:
            return body.graph
        if self.training not in body.switched:
            placeholders = [n.name for n in body.graph.graph.nodes if n.op == "placeholder"]
            targets = dict(zip(placeholders, body.state, strict=False))
            body.switched[self.training] = switch_mode(body.graph, targets, self.training)
        return body.switched[self.training]

    def extra_repr(self) -> str:
        return self.type_name.rsplit(".", 1)[-1]


class UnflattenedRoot(Unflattened):
    """The whole model: takes the captured model's arguments and returns its result."""

    program: Program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self.program
        leaves = execution.check_call(program, args, kwargs, dtypes=False)
        specs = program.signature.user_inputs
        arguments = {i.name: x for i, x in zip(specs, leaves, strict=True) if i.kind is InputKind.ARGUMENT}
        body = next(iter(self.bodies.values()))
        with explain_assertions(), internals.restore_modes(), _as_root(self):
            values = self._run(body, [arguments[name] for name in body.arguments])
        return execution.finish(program, values, arguments, lambda name: tensor_at(self, name))


@contextmanager
def _as_root(module: Unflattened) -> Iterator[None]:
    root, pending = _ROOT.set(module), _PENDING.set(None)
    try:
        yield
    finally:
        _ROOT.reset(root)
        _PENDING.reset(pending)


def call_submodule(path: str, call: str, *values: Any) -> tuple[Any, ...]:
    """What a body's graph calls where the model called a child: the child as it is now, by the name it has."""
    root = _ROOT.get()
    assert root is not None
    module = _find_below(root, path)
    body = root.plans[call]
    arguments, hidden = values[: len(body.arguments)], values[len(body.arguments) :]
    args, kwargs = _as_called(body, arguments)
    if isinstance(module, Unflattened):
        returned: list[Any] = []
        _PENDING.set(_Pending(module, body, hidden, returned))
        module(*args, **kwargs)
        return tuple(returned)
    return _call_replacement(module, path, body, args, kwargs)


def _find_below(root: Unflattened, path: str) -> nn.Module:
    """The module at a path of the whole model, which must lie below the one that was called."""
    inside = path if not root.path else path.removeprefix(f"{root.path}.") if path.startswith(f"{root.path}.") else None
    if inside is None:
        raise UnflattenError(
            format_error(
                f"The module {root.path} cannot be called by itself.",
                why=f"it calls {path}, which is not below it",
                fix="call the whole model",
            )
        )
    return root.get_submodule(inside)


def call_control(op: Any, paths: Sequence[str], *args: Any) -> Any:
    """What a body's graph calls where the model called a higher-order operator whose functions call modules.

    Gradients reach what such an operator is given and nothing that its functions close over. So the parameters of the
    modules at `paths`, as they are now, are operands too, and while a function runs its modules hold what it got.
    """
    root = _ROOT.get()
    assert root is not None
    places: dict[torch.Tensor, list[tuple[dict[str, Any], str]]] = {}
    for module in {m for path in paths for m in _find_below(root, path).modules()}:
        for name, tensor in module._parameters.items():
            if tensor is not None and tensor.requires_grad:
                places.setdefault(tensor, []).append((vars(module)["_parameters"], name))
    if not places:
        return op(*args)

    def holding(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            split = len(values) - len(places)
            # It runs again when gradients are computed, and that is outside the model's call.
            with _as_root(root), _hold_tensors(zip(places.values(), values[split:], strict=True)):
                return function(*values[:split])

        return run

    layout = subgraphs.LAYOUTS[op]
    made: list[Any] = [holding(arg) if index in layout.functions else arg for index, arg in enumerate(args)]
    assert layout.shared is not None
    made[layout.shared] = type(args[layout.shared])([*args[layout.shared], *places])
    return op(*made)


@contextmanager
def _hold_tensors(tensors: Iterable[tuple[list[tuple[dict[str, Any], str]], torch.Tensor]]) -> Iterator[None]:
    """Inside, each tensor is at its places."""
    before = []
    try:
        for places, tensor in tensors:
            for table, name in places:
                before.append((table, name, table[name]))
                table[name] = tensor
        yield
    finally:
        for table, name, old in before:
            table[name] = old


def _as_called(body: CallBody, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    if body.signature is None:
        return values, {}
    given = iter(values)
    leaves = [v.literal if v.kind == "literal" else next(given) for v in body.signature.inputs]
    args, kwargs = pytree.unflatten(leaves, body.signature.in_tree)
    return args, kwargs


def _call_replacement(
    module: nn.Module, path: str, body: CallBody, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """A module that the user put in the place of a preserved one."""
    if body.signature is None:
        raise UnflattenError(
            format_error(
                f"{path} was replaced by a {type(module).__name__}, but its call was not preserved.",
                why="only a preserved module is called the way the model called it",
                fix=f'capture with preserve_module_call_signature=("{path}",)',
            )
        )
    leaves, out_tree = pytree.flatten(module(*args, **kwargs))
    if out_tree != body.signature.out_tree:
        raise UnflattenError(
            format_error(
                f"The module put in the place of {path} returns {out_tree}, but the model needs "
                f"{body.signature.out_tree} from it."
            )
        )
    named = {v.name: leaf for v, leaf in zip(body.signature.outputs, leaves, strict=True) if v.kind != "literal"}
    missing = [name for name in body.outputs if name not in named]
    if missing:
        raise UnflattenError(
            format_error(
                f"{path} cannot be replaced: the model also uses {', '.join(missing)} from inside it.",
                fix="preserve the module around it instead",
            )
        )
    return tuple(named[name] for name in body.outputs)
