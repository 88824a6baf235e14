"""Whether compiled results are right: eager in float64 says what is true, eager in the model's own dtype what rounding
may do to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

import ingot

# How many times eager's own error compiled code may have, and roundings of the largest value that are allowed anyway.
TIMES = 8.0
ROUNDINGS = {torch.float32: 24, torch.bfloat16: 6}
DRAWS = 4
EPSILON = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

Outputs = Sequence[torch.Tensor]


def compare_outputs(
    model: nn.Module, wide: nn.Module, program: ingot.Program, mode: str, args: Outputs, got: Outputs
) -> str:
    """What is wrong with `got`, or "". `wide` is the model in float64. Eager is run at inputs a few roundings away
    too where one draw of its error does not suffice: it may be a lucky one."""
    integers = mode.startswith("int")
    eager = program if integers else model
    own = list(eager(*args))
    if integers:
        truth, coarse = own, None
    else:
        truth = list(wide(*(widened(arg) for arg in args)))
        own = run_until_finite(model, args, own, truth)
        coarse = copy.deepcopy(model).bfloat16() if mode == "products in bfloat16" else None
    if len(got) != len(own):
        return f"{len(got)} results instead of {len(own)}"
    for place, (mine, theirs, exact) in enumerate(zip(got, own, truth, strict=True)):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            if mine.dtype == theirs.dtype and not theirs.numel() and mine.shape == declared_shapes(model, args)[place]:
                continue
            return f"result {place} is {mine.dtype}{[*mine.shape]} instead of {theirs.dtype}{[*theirs.shape]}"

        def spread(place: int = place, exact: torch.Tensor = exact) -> float:
            """Eager's largest error over some draws."""
            runs: list[tuple[Any, torch.Tensor]] = []
            for seed in range(DRAWS):
                # A rounding of integers may fall either way: sums in another order move it as far as this does.
                near = [moved(arg, seed, 32 if integers else 2) for arg in args]
                if integers:
                    runs.append((moved_program(program, near, seed)[place], exact))
                else:
                    # Weights move as well: where all inputs are tokens, which cannot, every draw would be the same.
                    state = {name: moved(value, seed, 2) for name, value in model.state_dict().items()}
                    true = {name: widened(value) for name, value in state.items()}
                    ours = torch.func.functional_call(model, state, tuple(near))
                    runs.append((ours[place], torch.func.functional_call(wide, true, tuple(map(widened, near)))[place]))
                    # Where a value does not depend on the inputs' last bits, its own rounding may still matter: the
                    # layer norm of three softmax results of 1/3 is 0, or their last bits times 300.
                    with RoundedEitherWay(seed):
                        runs.append((model(*args)[place], exact))
                if coarse is not None:
                    cast = [arg.bfloat16() if arg.is_floating_point() else arg for arg in near]
                    runs.append((coarse(*cast)[place], exact))
            return max(distance(a.double(), b.double()) for a, b in runs)

        epsilon = 2.0**-8 if mode == "products in bfloat16" else EPSILON[theirs.dtype]
        problem = difference(mine, theirs, exact, epsilon, spread, least=0.02 if integers else 0.0)
        if problem:
            return f"result {place} {problem}"
    return ""


def run_until_finite(model: Callable[..., Outputs], args: Outputs, own: Outputs, truth: Outputs) -> list[torch.Tensor]:
    """Eager's results, of another run where these hold a nan or inf that float64 does not have. A kernel that overflows
    does so again; one that reads memory that nothing wrote may not. If it stays, the results are eager's."""
    for _ in range(3):
        if all(mine.isfinite().all() or not exact.isfinite().all() for mine, exact in zip(own, truth, strict=True)):
            break
        own = model(*args)
    return list(own)


def declared_shapes(model: nn.Module, args: Outputs) -> list[torch.Size]:
    """The shapes that eager declares. Its kernels do not always keep to them where there are no elements:
    `pixel_unshuffle` returns its input then."""
    results = copy.deepcopy(model).to("meta")(*(arg.to("meta") for arg in args))
    return [result.shape for result in results]


class RoundedEitherWay(TorchDispatchMode):
    """Moves every number that an operator had to round by at most one unit in its last place, as another kernel for
    the same operator may."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if func.is_view or func._schema.is_mutable:
            return results
        try:
            exact = func(*tree_map_only(torch.Tensor, widened, args), **tree_map_only(torch.Tensor, widened, kwargs))
        except (RuntimeError, NotImplementedError):  # one that takes this dtype only
            return results
        return tree_map(self._moved, results, exact)

    def _moved(self, result: Any, exact: Any) -> Any:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        steps = torch.randint(-1, 2, result.shape, generator=self.generator).to(result.dtype)
        moved_result = result * (1 + steps * torch.finfo(result.dtype).eps)
        return torch.where(result.double() == exact, result, moved_result)


def difference(
    mine: torch.Tensor,
    theirs: torch.Tensor,
    exact: torch.Tensor,
    epsilon: float,
    spread: Callable[[], float] = lambda: 0.0,
    least: float = 0.0,
) -> str:
    """What is wrong with a tensor. `least`: a part of the largest value that is allowed anyway, a step of integers.

    Where eager overflows, or reads memory that nothing wrote, float64's numbers are right as well."""
    is_eagers = torch.equal(mine.isfinite(), theirs.isfinite())
    if not is_eagers and not torch.equal(mine.isfinite(), exact.isfinite()):
        count, eagers, exacts = (int((~t.isfinite()).sum()) for t in (mine, theirs, exact))
        return f"has nan or inf in {count} of {mine.numel()} places, eager in {eagers}, float64 in {exacts}"
    if not mine.numel():
        return ""
    x, y, z = mine.double(), theirs.double(), exact.double()
    largest = max(float(z.nan_to_num(0, 0, 0).abs().max()), 1e-3)
    error = min(distance(x, z), distance(x, y)) if is_eagers else distance(x, z)
    allowed = max(ROUNDINGS[theirs.dtype] * epsilon, least) * largest + TIMES * distance(y, z)
    if error <= allowed:
        return ""
    allowed += TIMES * spread()
    if error <= allowed:
        return ""
    return f"is off by {error:.3g} where {allowed:.3g} is allowed and the largest value is {largest:.3g}"


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    off = (a - b).abs().nan_to_num(0, 0, 0)
    return float(off.max()) if off.numel() else 0.0


def widened(arg: torch.Tensor) -> torch.Tensor:
    return arg.double() if arg.is_floating_point() else arg


def moved_program(program: ingot.Program, args: Outputs, seed: int) -> Outputs:
    """A program's results with its weights moved as well: its inputs may all be tokens, which cannot be."""
    module = program.module()
    state = {name: moved(value, seed, 32) for name, value in module.state_dict().items()}
    results: Outputs = torch.func.functional_call(module, state, tuple(args))
    return results


def moved(arg: torch.Tensor, seed: int, units: int) -> torch.Tensor:
    """Every number moved by at most so many units in its last place."""
    if not arg.is_floating_point():
        return arg
    steps = torch.randint(-units, units + 1, arg.shape, generator=torch.Generator().manual_seed(seed)).to(arg.dtype)
    return arg * (1 + steps * torch.finfo(arg.dtype).eps)
