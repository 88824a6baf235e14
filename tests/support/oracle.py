"""What a compiled model is held to: eager run in float64, at every size, and the same bits without torch.

    python -m tests.support.oracle TARGET FOLDER static:bert dynamic:gpt2 …      one line of JSON a model

The error of compiled code against float64 may be four times that of eager float32 against it, and no less than a few
roundings of a number as large as the output's largest.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import ingot
from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build import toolchain
from ingot.errors import IngotError, InputError
from ingot.ir import pytree
from ingot.targets.base import NativeTarget
from tests.support.zoo import Entry, entry

ALLOWED = 4.0
# Sizes at which what is right is not defined: equal scores, of which torch takes any.
TIES = {"doge": (5,)}
ROUNDINGS = 8
LUCK = 8.0  # how many times smaller than at other inputs eager's error may be by luck
MORE = (1, 2, 5)
DRAWS = 12
EPSILON = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one model. `outcome` is right, refused, wrong or failed; `ratio` is in units of eager's error."""

    name: str
    kind: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    ratio: float = 0.0
    sizes: int = 0
    random: bool = False


class Wrong(AssertionError):
    """Compiled code gave something else than eager."""


# ---------------------------------------------------------------------- the truth


class _Wide(TorchFunctionMode):
    """Models that ask for float32 by name get float64: the truth rounds nowhere to less."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            return args[0].double()
        if getattr(function, "__name__", "").lstrip("_") == "grouped_mm":  # which torch has in no more than float32
            return _grouped(*args, **(kwargs or {}))
        args, kwargs = torch.utils._pytree.tree_map(
            lambda leaf: torch.float64 if leaf is torch.float32 else leaf, (args, kwargs or {})
        )
        return function(*args, **kwargs)


def _grouped(x: torch.Tensor, weight: torch.Tensor, *, offs: torch.Tensor, **_: Any) -> torch.Tensor:
    ends = [0, *offs.tolist()]
    return torch.cat([x[a:b] @ w for a, b, w in zip(ends, ends[1:], weight, strict=False)])


def in_double(model: nn.Module) -> Callable[..., Any]:
    """The model's call with everything in float64."""
    double = copy.deepcopy(model).double()
    for module in double.modules():  # tensors that a module keeps without registering them
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = torch.utils._pytree.tree_map(
            lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf,
            (args, kwargs),
        )
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        try:
            with _Wide(), torch.no_grad():
                return double(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)

    return call


def run(model: Any, inputs: Mapping[str, Any]) -> Any:
    """The model's result with every random draw from the same seed."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**copy.deepcopy(inputs))


# ---------------------------------------------------------------------- comparing


def worst_ratio(
    got: Any, single: Any, double: Any | None, label: str, epsilon: float = 0.0, own: Sequence[float] | None = None
) -> float:
    """The largest error of `got` in units of what eager's own allows to be 1. Wrong where the result is another.

    `epsilon` is that of the narrowest dtype that the model computes in, where it is narrower than the results' own.
    `own` is what is known of eager's error at each output besides what this call tells.
    """
    mine, mine_tree = pytree.flatten(got)
    theirs, theirs_tree = pytree.flatten(single)
    if mine_tree != theirs_tree:
        raise Wrong(f"{label}: {mine_tree} instead of {theirs_tree}")
    truth = theirs if double is None else pytree.flatten(double)[0]
    known = own if own is not None else [0.0] * len(truth)
    leaves = enumerate(zip(mine, theirs, truth, known, strict=True))
    ratios = (_leaf_ratio(*three, f"{label}, output {number}", epsilon, least) for number, (*three, least) in leaves)
    return max(ratios, default=0.0)


def _leaf_ratio(mine: Any, theirs: Any, truth: Any, label: str, epsilon: float, least: float = 0.0) -> float:
    if not isinstance(theirs, torch.Tensor):
        if mine != theirs and not (mine != mine and theirs != theirs):
            raise Wrong(f"{label}: {mine!r} instead of {theirs!r}")
        return 0.0
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        raise Wrong(f"{label}: {mine.dtype}{[*mine.shape]} instead of {theirs.dtype}{[*theirs.shape]}")
    if not theirs.is_floating_point():
        if not torch.equal(mine, theirs):
            raise Wrong(f"{label}: {int((mine != theirs).sum())} of {theirs.numel()} {theirs.dtype} differ")
        return 0.0
    mine, theirs, epsilon = mine.double(), theirs.double(), max(epsilon, EPSILON[theirs.dtype])
    for mask, what in ((torch.isnan, "nan"), (lambda t: t == torch.inf, "inf"), (lambda t: t == -torch.inf, "-inf")):
        if not torch.equal(mask(mine), mask(theirs)):
            raise Wrong(f"{label}: {int(mask(mine).sum())} {what} instead of {int(mask(theirs).sum())}")
    known = theirs.isfinite() & truth.double().isfinite()
    if not known.any():
        return 0.0
    mine, theirs, truth = mine[known], theirs[known], truth.double()[known]
    floor = ROUNDINGS * epsilon * max(float(truth.abs().max()), 1e-30)
    error = float((mine - truth).abs().max())
    here = max(float((theirs - truth).abs().max()), floor / ALLOWED)
    own = max(here, min(least, LUCK * here))  # past that a decision fell otherwise there, and says nothing of here
    ratio = error / own
    if ratio > ALLOWED:
        raise Wrong(f"{label}: error {error:.3g}, eager's {own:.3g}, largest value {float(truth.abs().max()):.3g}")
    return ratio


def own_errors(model: nn.Module, wide: Callable[..., Any], inputs: Mapping[str, Any]) -> list[float]:
    """Eager's largest error at each output, of several draws: at inputs that are a few roundings away from these.

    The error of one call is one draw, and may be a lucky one: of GroupViT at one size eager's is 6e-6, and between
    6e-6 and 3e-5 where every pixel is moved by at most two units in its last place.
    """
    worst: list[float] = []
    for seed in range(DRAWS):
        near = {name: _moved(value, torch.Generator().manual_seed(seed)) for name, value in inputs.items()}
        pairs = zip(pytree.flatten(run(model, near))[0], pytree.flatten(wide(**copy.deepcopy(near)))[0], strict=True)
        errors = [
            float((a.double() - b.double()).abs().nan_to_num().max())
            if isinstance(a, torch.Tensor) and a.numel()
            else 0.0
            for a, b in pairs
        ]
        worst = [max(pair) for pair in zip(worst or errors, errors, strict=True)]
    return worst


def _moved(value: Any, draws: torch.Generator) -> Any:
    """Every number moved by at most two units in its last place."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    steps = torch.randint(-2, 3, value.shape, generator=draws).to(value.dtype)
    return value * (1 + steps * torch.finfo(value.dtype).eps)


# ---------------------------------------------------------------------- judging


def assert_right(
    model: nn.Module | Callable[..., Any], *calls: Sequence[Any], dynamic_shapes: Any = None, **options: Any
) -> CompiledModel:
    """Compiles with the first call's arguments, and compares each call with a copy of the eager model in turn.

    What a call writes, in its arguments or in the model, is compared as well: calls see the state of those before.
    """
    eager = copy.deepcopy(model)
    truth = in_double(eager) if isinstance(eager, nn.Module) else None
    compiled = ingot.compile(model, copy.deepcopy(tuple(calls[0])), dynamic_shapes=dynamic_shapes, **options)
    for number, call in enumerate(calls):
        mine, theirs, doubles = (copy.deepcopy(tuple(call)) for _ in range(3))
        with torch.no_grad():
            single, got = eager(*theirs), compiled(*mine)
            double = truth(*doubles) if truth is not None else None
        worst_ratio(got, single, double, f"call {number}")
        worst_ratio(mine, theirs, None, f"arguments after call {number}")
    return compiled


@contextmanager
def quick_compiler(level: str = "-O1") -> Iterator[None]:
    """Compiles with less optimization inside: what is judged is meaning."""
    before = toolchain.FLAGS
    toolchain.FLAGS = tuple(level if flag == "-O3" else flag for flag in before)
    try:
        yield
    finally:
        toolchain.FLAGS = before


def judge(
    item: Entry,
    kind: str,
    folder: Path,
    target: str | NativeTarget[Any] = "cpu",
    isa: str | None = None,
    run_model: bool = True,
) -> Verdict:
    """Compiles an entry of the zoo, "static" or "dynamic", and judges it; leaves a file and its calls in `folder`.
    Without `run_model`, where there is no machine for it, only whether it is compiled."""
    model, inputs = item.build(), item.inputs(item.sizes)
    run(model, inputs)  # some keep what they make at the first call
    begin = time.perf_counter()
    try:
        compiled = ingot.compile(
            model,
            (),
            copy.deepcopy(inputs),
            dynamic_shapes=item.dynamic if kind == "dynamic" else None,
            target=target,
            isa=isa,
        )
    except IngotError as error:
        return Verdict(item.name, kind, "refused", f"{type(error).__name__}: {error}", time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    if not run_model:
        compiled.close()
        return Verdict(item.name, kind, "right", "", seconds)
    try:
        ratio, count = _compare(item, model, compiled, kind, folder)
    except Wrong as error:
        return Verdict(item.name, kind, "wrong", str(error), seconds)
    finally:
        compiled.close()
    return Verdict(item.name, kind, "right", "", seconds, ratio, count, compiled.draws)


def _compare(item: Entry, model: nn.Module, compiled: CompiledModel, kind: str, folder: Path) -> tuple[float, int]:
    wide = in_double(model)
    worst, calls = 0.0, []
    others = [more for more in MORE if kind == "dynamic" and more not in TIES.get(item.name, ())]
    sizes = [item.sizes, *({n: s + more for n, s in item.sizes.items()} for more in others)]
    for size in sizes:
        inputs = item.inputs(size)
        try:
            got = run(compiled, inputs)
        except InputError:
            if size is item.sizes:
                raise
            continue  # the model's Python code takes another path at this size, and the program says so
        single = run(model, inputs)
        if not compiled.draws:
            worst = max(worst, worst_ratio(got, single, wide(**inputs), f"at {size}"))
            again = run(compiled, inputs)
            if not same_bits(got, again):
                raise Wrong(f"at {size}: a second call gives other bits")
            calls.append((inputs, compiled.model.run(compiled._leaves((), inputs))))
    compiled.save(folder / f"{kind}-{item.name}.ingot")
    _write_calls(folder / f"{kind}-{item.name}", calls)
    return worst, len(calls)


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results are the same to the last bit, nan included."""
    a, b = ([leaf for leaf in pytree.flatten(value)[0] if isinstance(leaf, torch.Tensor)] for value in (first, second))
    return len(a) == len(b) and all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------------- without torch


def _write_calls(stem: Path, calls: list[tuple[dict[str, Any], list[Any]]]) -> None:
    for number, (inputs, outputs) in enumerate(calls):
        arrays = {f"in.{n}": v.numpy() for n, v in inputs.items() if isinstance(v, torch.Tensor)}
        arrays |= {f"out.{n}": np.asarray(getattr(v, "bits", v)) for n, v in enumerate(outputs)}
        np.savez(f"{stem}.{number}.npz", **arrays)
        plain = {n: v for n, v in inputs.items() if not isinstance(v, torch.Tensor)}
        Path(f"{stem}.{number}.json").write_text(json.dumps(plain), encoding="utf-8")


# Runs where there is no torch: every file of the folder, at every call that was made in the process with torch.
WITHOUT_TORCH = """
import json, pathlib, sys
import numpy as np
import ingot_runtime

wrong = []
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.ingot")):
    with ingot_runtime.load(file) as model:
        for call in sorted(file.parent.glob(file.stem + ".*.npz")):
            stored = np.load(call)
            inputs = {n[3:]: stored[n] for n in stored.files if n.startswith("in.")}
            inputs |= json.loads(call.with_suffix(".json").read_text())
            results = model.run(model.leaves((), inputs))
            for number, result in enumerate(results):
                want = stored[f"out.{number}"]
                got = np.asarray(getattr(result, "bits", result))
                if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
                    wrong.append(f"{call.stem}: output {number} has other bits than in the process with torch")
            model(**inputs)
        if model._sample is not None:
            try:
                model.self_test()
            except ingot_runtime.SelfTestFailed as error:
                wrong.append(f"{file.stem}: self-test: {error}")
assert "torch" not in sys.modules and "ingot" not in sys.modules
print(json.dumps(wrong))
"""


def without_torch(folder: Path) -> list[str]:
    """Runs what `judge` left in the folder in a process without torch; gives what was wrong."""
    source = Path(ingot.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder)], capture_output=True, text=True, env=environment, timeout=600
    )
    if done.returncode:
        return [done.stderr[-2000:]]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def verdict_on(name: str, judge: Callable[[Entry, str], Verdict]) -> Verdict:
    """What `judge` says of "kind:model"; where it raises, the model has failed, and the place in Ingot is reported."""
    kind, _, model = name.partition(":")
    try:
        return judge(entry(model), kind)
    except Exception as error:
        place = ""
        at = error.__traceback__
        while at is not None:
            if "/ingot/" in at.tb_frame.f_code.co_filename:
                place = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
            at = at.tb_next
        return Verdict(model, kind, "failed", f"{type(error).__name__} at {place}: {error}")


def main() -> None:
    target, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    for name in sys.argv[3:]:
        print(json.dumps({"begin": name}), flush=True)
        with quick_compiler():
            verdict = verdict_on(name, functools.partial(judge, folder=folder, target=target))
        print(json.dumps(asdict(verdict)), flush=True)


if __name__ == "__main__":
    main()
