"""Whether each stage computes what the one before it does, and what values the nodes have.

Every stage runs on the example inputs: graphs through torch, node by node; loops in the reference interpreter; the code
as it is compiled. Nothing raises: what differs is shown at its stage, and what cannot run is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx, nn

from ingot.ir import execution, metadata, pytree, subgraphs
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import OutputKind
from ingot.lowering.loop_module import Module, Precision
from ingot.passes.instrumentation.state_copies import SEED, clone_tensors, copy_state
from ingot.passes.instrumentation.value_comparison import TOLERANCE, compare_values
from ingot.targets.base import Target
from ingot.targets.reference.schedule_check import ScheduleCheck
from ingot.viewer.view_data import Json, ViewData

# Called with the path of a graph, the name of a node, and what it gave.
Watch: TypeAlias = Callable[[str, str, Any], None]
_BINS = 24
# Bytes of values of nodes that are kept from one stage to the next.
_MOST_KEPT = 1 << 28
# Dtypes that round as products in these precisions do: tf32 has the 10 bits of fraction of float16.
_PRECISIONS = {"bfloat16": {torch.bfloat16}, "tf32": {torch.float16}}
# Of a stage that changed nothing.
SAME = {"agrees": True, "exact": True, "difference": 0.0, "largest": None, "where": "", "text": "nothing changed"}


class NumericChecks:
    """Runs stage after stage and compares each with the one before."""

    def __init__(self, view: ViewData, program: Program) -> None:
        args, kwargs = program.example_inputs or ((), {})
        self.view = view
        self.leaves = execution.check_call(program, tuple(args), dict(kwargs))
        self.program = program
        self._results: dict[str, Any] | None = None
        # What the nodes of the stage before gave, by the path of the graph and the name; not more than fits.
        self._values: dict[tuple[str, str], torch.Tensor] = {}
        self._schedule: ScheduleCheck | None = None
        self._arrays: dict[str, Any] | None = None

    def check_program(self, program: Program, indexes: Mapping[tuple[str, str], int], exact: bool) -> Json:
        """A program against the one before; its nodes' values are summed up under their indexes in the pool, and
        compared with those of the nodes that had their names."""
        values: dict[tuple[str, str], torch.Tensor] = {}
        differences: dict[int, float | None] = {}
        room = _MOST_KEPT

        def watch(path: str, name: str, value: Any) -> None:
            nonlocal room
            index = indexes.get((path, name))
            if index is None or not isinstance(value, torch.Tensor):
                return
            if index not in self.view.stats:
                summary = summarize_values(value)
                if summary is not None:
                    self.view.stats[index] = summary
            before = self._values.get((path, name))
            if before is not None and before.shape == value.shape:
                differences[index] = finite(_distance(before, value)[0])
            room -= value.numel() * value.element_size()
            if room >= 0:
                values[path, name] = value.detach().clone()  # an operator may write to it later

        self.program = program
        try:
            results = run_watched(program, self.leaves, watch)
        except Exception as error:  # whatever torch raises: an operator that only lowering knows
            self.view.notes.append(f"{_stage_name(program)} was not compared: {_first_line(error)}")
            return None
        before, self._results = self._results, results
        self._values = values
        if before is None:
            return None
        nodes = [part for index, apart in differences.items() if apart is not None for part in (index, apart)]
        return compare_results(before, results, exact, _coarsest(program)) | {"nodes": nodes}

    def check_module(self, target: Target[Any], program: Program, module: Module) -> Json:
        """A module against the one before, the first one against torch."""
        first = self._schedule is None
        try:
            self._schedule = self._schedule or ScheduleCheck(target, program)
            found = self._schedule.run(module)
        except Exception as error:  # a step without a meaning in the interpreter, or arguments that it does not know
            note = f"The loops could not be interpreted: {_first_line(error)}"
            self.view.notes += [note] if note not in self.view.notes else []
            return None
        arrays = {output.name: found[output.buffer] for output in module.outputs if output.buffer in found}
        before, self._arrays = self._arrays, arrays
        if first and (module.draws or self._results is None):
            return None
        if first:
            named = zip(module.outputs, _tensors_of(self.program, self._results or {}), strict=False)
            before = {output.name: leaf for output, leaf in named}
        return compare_results(_flatten(before or {}), _flatten(arrays), False, _coarsest(program, module.precision))

    def check_call(self, call: Callable[..., Any], program: Program, module: Module) -> Json:
        """What a compiled model gives, against torch, which draws other random numbers."""
        if module.draws or self._results is None:
            return None
        args, kwargs = program.example_inputs or ((), {})
        given, tree = pytree.flatten((tuple(args), dict(kwargs)))
        args, kwargs = pytree.unflatten(clone_tensors(given), tree)
        leaves, tree = pytree.flatten(call(*args, **kwargs))
        names = [f"result {pytree.format_path(path)}" for path in pytree.leaf_paths(tree)]
        expected = {name: value for name, value in self._results.items() if name in names}
        coarsest = _coarsest(program, module.precision)
        return compare_results(expected, dict(zip(names, leaves, strict=True)), False, coarsest)


def _stage_name(program: Program) -> str:
    return program.history[-1].name if program.history else "captured"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _coarsest(program: Program, precision: Precision = "float32") -> torch.dtype | None:
    """The dtype with the largest roundings among those of the nodes, and what products multiply in."""
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    found = {tensor.dtype for node in nodes for tensor in metadata.tensors_in(metadata.value_of(node))}
    found |= _PRECISIONS.get(precision, set())
    return max(found & TOLERANCE.keys(), key=TOLERANCE.__getitem__, default=None)


def _tensors_of(program: Program, results: Mapping[str, Any]) -> list[Any]:
    """The results that are not literals, in the program's order."""
    leaves = [value for name, value in results.items() if name.startswith("result ")]
    kinds = [output.kind for output in program.signature.user_outputs]
    return [leaf for leaf, kind in zip(leaves, kinds, strict=False) if kind is OutputKind.RESULT]


def _flatten(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Values as flat float64 tensors: the interpreter has its own dtypes for some."""
    made: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value).copy())
        made[name] = (tensor if tensor.is_complex() else tensor.to(torch.float64)).reshape(-1)
    return made


# ---------------------------------------------------------------------- comparing


def compare_results(
    before: Mapping[str, Any], after: Mapping[str, Any], exact: bool, computed_in: torch.dtype | None
) -> Json:
    """How far two runs are apart: the largest difference of all results, and the result that has it."""
    difference = largest = 0.0
    where, problem = "", None
    for name, value in before.items():
        if name not in after:
            continue  # a pass may fold state away
        apart, scale = _distance(value, after[name])
        if apart > difference or not where:
            difference, where = apart, name
        largest = max(largest, scale)
        found = compare_values(value, after[name], exact, computed_in)
        if found is not None and problem is None:
            problem = f"{name} {found}"
    text = problem or ("agrees bit for bit" if difference == 0 else f"agrees within {difference:.3g}")
    return {
        "agrees": problem is None,
        "exact": exact,
        "difference": finite(difference),
        "largest": finite(largest),
        "where": where,
        "text": text,
    }


def _distance(a: Any, b: Any) -> tuple[float, float]:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or not a.numel():
        return 0.0, 0.0
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.detach().cpu().to(wide), b.detach().cpu().to(wide)
    both = x.isfinite() & y.isfinite()
    if not both.any():
        return 0.0, 0.0
    return float((x[both] - y[both]).abs().max()), float(x[both].abs().max())


def finite(value: float) -> float | None:
    """JSON has no infinity and no nan."""
    return value if np.isfinite(value) else None


# ---------------------------------------------------------------------- values


def summarize_values(value: torch.Tensor) -> Json:
    """Least, most, mean, deviation and a histogram; None of what holds no real numbers."""
    if value.layout is not torch.strided or value.is_complex() or value.is_quantized:
        return None
    numbers = value.detach().cpu().to(torch.float64).reshape(-1)
    good = numbers[numbers.isfinite()]
    summary: dict[str, Any] = {
        "count": numbers.numel(),
        "nan": int(numbers.isnan().sum()),
        "inf": int(numbers.isinf().sum()),
        "zeros": int((numbers == 0).sum()),
        "min": None,
        "max": None,
        "mean": None,
        "std": None,
        "histogram": None,
    }
    if good.numel():
        low, high = (float(x) for x in good.aminmax())
        mean, std = float(good.mean()), float(good.std(correction=0))
        summary |= {"min": low, "max": high, "mean": finite(mean), "std": finite(std)}
        if np.isfinite(high - low) and high > low:
            counts = torch.histc(good, _BINS, low, high)
            summary["histogram"] = {"low": low, "high": high, "counts": [int(count) for count in counts]}
    return summary


def run_watched(program: Program, leaves: Sequence[Any], watch: Watch) -> dict[str, Any]:
    """What a call makes known: results, and arguments and state after it. The program's own state stays as it is."""
    running, given = copy_state(program), clone_tensors(list(leaves))
    running.graph_module = _WatchedGraph(program.graph_module, "", watch)  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        made = execution.run_leaves(running, given)
    out, tree = pytree.flatten(made)
    found = {
        f"result {pytree.format_path(path)}": leaf for path, leaf in zip(pytree.leaf_paths(tree), out, strict=True)
    }
    found |= {f"argument {number}": leaf for number, leaf in enumerate(given)}
    return found | {f"state {name}": tensor for name, tensor in running.state_dict.items()}


class _WatchedGraph(nn.Module):
    """A graph that shows what its nodes give, and those of the graphs that it calls."""

    def __init__(self, module: fx.GraphModule, path: str, watch: Watch) -> None:
        super().__init__()
        self.module, self.path, self.watch = module, path, watch

    def forward(self, *args: Any) -> Any:
        return _NodeWatcher(self.module, self.path, self.watch).run(*args, enable_io_processing=False)


class _NodeWatcher(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, path: str, watch: Watch) -> None:
        super().__init__(module)
        self.path, self.watch = path, watch

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if isinstance(made, fx.GraphModule):
            if all(user.target in subgraphs.LAYOUTS for user in n.users):
                return _WatchedGraph(made, f"{self.path}.{n.target}" if self.path else str(n.target), self.watch)
        elif n.op != "output":
            self.watch(self.path, n.name, made)
        return made
