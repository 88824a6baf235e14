"""Statements of the loop IR, many to a module: run by their kernels and by the interpreter, and compared.

bench = Statements()
x = bench.give(array, "float32")
y = bench.make("float32", (7,))
bench.add(Map(…))
bench.compare()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dependence import all_steps, local_buffers
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Buffer, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.reference.interpreter import Interpreter
from ingot.targets.reference.memory import decode, encode
from tests.support.cuda_emulation.kernels import run_module

# How far results may be apart, in units in the last place of the largest of a buffer, or of 1, the size of what is
# added: sums are of another order.
ULPS = 16.0
_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


@dataclass
class Statements:
    """A module being made. `sizes` are those that inputs would tell."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    steps: list[Stmt] = field(default_factory=list)

    def make(self, dtype: str, shape: tuple[Size, ...], kind: str = "output") -> str:
        name = f"b{len(self.buffers)}"
        self.buffers[name] = Buffer(name, dtype, shape, kind)
        return name

    def give(self, values: NDArray[Any], dtype: str, shape: tuple[Size, ...] | None = None, kind: str = "input") -> str:
        """A buffer with values, rounded to its dtype."""
        name = self.make(dtype, shape or values.shape, kind)
        with np.errstate(all="ignore"):
            wide = values.astype({"bfloat16": "float32", "float16": "float32", "bool": "bool"}.get(dtype, dtype))
            self.values[name] = encode(np.asarray(wide).reshape(-1), dtype)
        return name

    def add(self, *steps: Stmt) -> None:
        self.steps += steps

    @property
    def module(self) -> Module:
        return Module(self.buffers, tuple(self.steps), (), (), (), {}, dict(self.sizes))

    def compare(self, *, ulps: float = ULPS, seed: int = 0) -> dict[str, NDArray[Any]]:
        """What the kernels give, after it was compared with what the interpreter gives. Integers must be equal."""
        module = self.module
        meant = Interpreter(module, {}, seed=seed)
        meant.sizes.update(self.sizes)
        for name, value in self.values.items():
            meant.memory.assign(name, value.copy())
        meant.run_steps(module.steps)
        found = run_module(module, self.values, self.sizes, seed=seed)
        local = {name for step in all_steps(module.steps) for name in local_buffers(step)}
        for name, buffer in module.buffers.items():
            if name not in local:
                self._compare(name, buffer.dtype, found[name], meant.memory.array(name), ulps)
        return found

    def _compare(self, name: str, dtype: str, found: NDArray[Any], meant: NDArray[Any], ulps: float) -> None:
        where = f"{name}, written by {[step for step in self.steps if name in repr(step)][-1:]}"
        if dtype not in _BITS:
            np.testing.assert_array_equal(found.reshape(-1).view(meant.dtype), meant, err_msg=where)
            return
        got, wanted = (decode(one.view(meant.dtype), dtype).astype(np.float64) for one in (found, meant))
        finite = np.abs(wanted[np.isfinite(wanted)])
        reach = max(float(finite.max(initial=0.0)), 1.0) * ulps * 2.0 ** -_BITS[dtype]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=reach, equal_nan=True, err_msg=where)


def draw_values(shape: tuple[int, ...], dtype: str, seed: int = 0, *, special: bool = False) -> NDArray[Any]:
    """Numbers that suit a dtype; with `special`, nan and infinities among them."""
    drawn = np.random.default_rng(seed)
    if dtype == "bool":
        return drawn.integers(0, 2, shape) == 1
    if dtype not in _BITS:
        return drawn.integers(0 if dtype[0] == "u" else -100, 100, shape)
    values = drawn.standard_normal(shape)
    if special and values.size:
        flat = values.reshape(-1)
        flat[drawn.integers(0, flat.size, max(1, flat.size // 9))] = drawn.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
    return values
