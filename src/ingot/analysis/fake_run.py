"""Runs the nodes of a graph on fakes: each must give the dtype, device and shape that it claims."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.meta_kernels import on_fakes
from ingot.ir.printer import describe_value


class FakeRunFailure(NamedTuple):
    """A node that its operator's fake kernel rejects, or whose claim is not what the kernel computes."""

    what: str
    node: fx.Node
    why: str | None = None


def find_failure(
    module: fx.GraphModule, nodes: Collection[fx.Node], only: Collection[fx.Node] | None = None
) -> FakeRunFailure | None:
    """Runs the nodes of a graph and of the graphs in it, or `only` some; `nodes` are those of all of these graphs."""
    tensors = (t for node in nodes for t in metadata.tensors_in(metadata.value_of(node)))
    fake = next((t for t in tensors if isinstance(t, internals.FakeTensor)), None)
    return _FakeRun(nodes, fake.fake_mode, only).first_failure(module) if fake is not None else None


def symbols_in(value: Any) -> set[sympy.Symbol]:
    """The symbols in a value's sizes."""
    sizes: list[Any] = [size for tensor in metadata.tensors_in(value) for size in tensor.shape]
    sizes.extend(value if isinstance(value, list | tuple) else [value])
    return {symbol for size in sizes if internals.is_symbolic(size) for symbol in size.node.expr.free_symbols}


class _FakeRun:
    """Runs every node by itself, on the values that its arguments claim.

    If each node is right given its arguments, the whole is right; and a node that is not is the one to blame, while in
    a run from end to end it would be one of those after it.
    """

    def __init__(
        self, nodes: Collection[fx.Node], mode: internals.FakeTensorMode, only: Collection[fx.Node] | None
    ) -> None:
        self.mode, self.only = mode, only
        self.env: internals.ShapeEnv | None = mode.shape_env
        self.known = {s for node in nodes for s in symbols_in(metadata.value_of(node))}
        self.asserted: dict[sympy.Basic, sympy.Basic] = {}  # by the graph so far, or by one around it

    def first_failure(self, module: fx.GraphModule) -> FakeRunFailure | None:
        # The generator is closed in here: a caller that stops at the first failure must not leave contexts open.
        return internals.run_isolated(lambda region: self._run(region, module))

    def _run(self, region: internals.Region, module: fx.GraphModule) -> FakeRunFailure | None:
        region.enter(internals.exporting())
        region.enter(internals.discard_guards(self.env))
        region.hold(internals.enable_python_dispatcher)
        region.enter(self.mode)
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)  # what is on around verify() does not belong to the program
        with closing(self._graph(module)) as failures:
            return next(failures, None)

    def _graph(self, module: fx.GraphModule) -> Generator[FakeRunFailure]:
        casts: dict[fx.Node, Any] = {}
        grad, asserted = torch.is_grad_enabled(), dict(self.asserted)
        try:
            for node in module.graph.nodes:
                if node.op != "call_function":
                    continue
                if node.target is internals.enter_autocast:
                    casts[node] = internals.enter_autocast(*node.args)
                elif node.target is internals.exit_autocast:
                    internals.exit_autocast(casts.pop(node.args[0]))
                elif node.target is internals.set_grad_enabled:
                    internals.set_grad_enabled(*node.args)
                else:
                    yield from self._inner_graphs(module, node)
                    if self.only is None or node in self.only:
                        yield from self._node(module, node)
                    self._learn(node)
        finally:
            for cast in reversed(casts.values()):
                internals.exit_autocast(cast)
            internals.set_grad_enabled(grad)
            self.asserted = asserted

    def _inner_graphs(self, module: fx.GraphModule, node: fx.Node) -> Iterator[FakeRunFailure]:
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                with _region(node):
                    yield from self._graph(getattr(module, str(argument.target)))

    def _node(self, module: fx.GraphModule, node: fx.Node) -> Iterator[FakeRunFailure]:
        target: Any = node.target
        writes = isinstance(target, internals.OpOverload) and target._schema.is_mutable

        def value(argument: fx.Node) -> Any:
            if argument.op == "get_attr":
                return getattr(module, str(argument.target))
            claimed = metadata.value_of(argument)
            return self._copy(claimed) if writes else claimed

        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        try:
            with internals.below_autograd():
                computed = on_fakes(target)(*args, **kwargs)
        except Exception as failure:
            reason = (str(failure).strip().splitlines() or [""])[0]
            yield FakeRunFailure(
                f"{node.name} cannot be run on what its arguments claim to be.",
                node,
                f"{type(failure).__name__}: {reason}",
            )
            return
        claimed = metadata.value_of(node)
        sizes = _Sizes(self.env, self.known, metadata.bindings_of(node) or {}, self.asserted)
        if not sizes.same(claimed, computed):
            yield FakeRunFailure(
                f"{node.name} claims to be {describe_value(claimed)}, but computes {describe_value(computed)}.", node
            )

    def _learn(self, node: fx.Node) -> None:
        """Notes what holds from here on because a node asserts it."""
        if node.target is not torch.ops.aten._assert_scalar.default or not node.args:
            return
        claim = metadata.value_of(node.args[0]) if isinstance(node.args[0], fx.Node) else node.args[0]
        condition = internals.expr_to_check(claim) if internals.is_symbolic(claim) else None
        if isinstance(condition, sympy.Eq) and isinstance(condition.lhs, sympy.Symbol):
            self.asserted[condition.lhs] = condition.rhs

    def _copy(self, value: Any) -> Any:
        """A fake that may be written to, so that the one in the program stays as it is."""
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item) for item in value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        return internals.fake_sized(self.mode, value.detach(), value.shape, value.stride())


@contextmanager
def _region(node: fx.Node) -> Iterator[None]:
    """Inside, the modes are those in which a region's operator runs its graph."""
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        device, dtype, enabled, cache = node.args[:4]
        with torch.autocast(str(device), dtype=dtype, enabled=bool(enabled), cache_enabled=cache):  # type: ignore[arg-type]
            yield
    elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        with internals.grad_mode(bool(node.args[0])):
            yield
    else:
        yield


class _Sizes:
    """Compares values. A run may give an unknown size (u0) another name; it must then do so everywhere."""

    def __init__(
        self,
        env: internals.ShapeEnv | None,
        known: set[sympy.Symbol],
        bindings: Any,
        asserted: dict[sympy.Basic, sympy.Basic],
    ) -> None:
        self.env, self.known, self.asserted = env, known, asserted
        self.bindings = tuple(bindings)
        self.renamed: dict[sympy.Symbol, sympy.Basic] = {}

    def same(self, claimed: Any, computed: Any) -> bool:
        if isinstance(claimed, list | tuple) and isinstance(computed, list | tuple):
            return len(claimed) == len(computed) and all(map(self.same, claimed, computed))
        if isinstance(claimed, torch.Tensor) and isinstance(computed, torch.Tensor):
            return (
                claimed.dtype == computed.dtype
                and claimed.device == computed.device
                and claimed.layout == computed.layout
                and claimed.dim() == computed.dim()
                and all(map(self._same_size, claimed.shape, computed.shape))
            )
        if internals.is_symbolic(claimed) or internals.is_symbolic(computed):
            return self._same_size(claimed, computed)
        return type(claimed) is type(computed) and bool(claimed == computed)

    def _same_size(self, claimed: Any, computed: Any) -> bool:
        if claimed is None or computed is None:
            return False
        a, b = internals.expr_of(claimed), internals.expr_of(computed).xreplace(self.renamed)
        if isinstance(b, sympy.Symbol) and self._is_fresh(b) and self._is_unknown(a):
            self.renamed[b] = a
            return True
        fresh = [symbol for symbol in b.free_symbols if self._is_fresh(symbol)]
        own = [symbol for symbol in a.free_symbols if symbol in self.bindings]
        if len(fresh) == len(own) == 1 and b.xreplace({fresh[0]: own[0]}) == a:  # item() of a bool is u0 == 1
            self.renamed[fresh[0]] = own[0]
            return True
        if a in self.bindings and any(map(internals.is_unbacked, b.free_symbols)):
            return True  # another node asked the same, or has bound since what this one did not know
        return internals.surely_equal(self.env, a.xreplace(self.asserted), b.xreplace(self.asserted))

    def _is_fresh(self, symbol: sympy.Symbol) -> bool:
        return symbol not in self.known and internals.is_unbacked(symbol)

    def _is_unknown(self, expr: sympy.Basic) -> bool:
        """Whether a claim may stand for a size known only by running the node: a symbol, or what is known of it."""
        if isinstance(expr, sympy.Symbol):
            return internals.is_unbacked(expr)
        return any(internals.surely_equal(self.env, symbol, expr) for symbol in self.bindings)
