"""What a target chooses while a program is lowered.

Lowering gives every operator a meaning in loops over plain memory. Which algorithm computes a matrix product or a
convolution, and in which layout its operands lie, only the machine can say: rules ask the strategy that the target has
given. This one, the base of all others, chooses nothing: products, convolutions and attention stay whole, over memory
as it is, for the target's schedule to work on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Gemm, Stmt
from ingot.lowering.tensor_views import TensorValue

if TYPE_CHECKING:
    from ingot.lowering.lower import Lowering
    from ingot.lowering.rules.nn.convolution import ConvWindows


class LoweringStrategy:
    """Every method may be overridden. One that returns None leaves the choice to the rule that asks."""

    # Queries and keys of the blocks for which a mask is asked ahead whether it holds anything there.
    attention_block: tuple[int, int] = (64, 64)
    # Copies of a table to which parts of the work add: sums then do not depend on how the work is shared out.
    accumulator_copies: int = 16
    # Kinds of devices whose tensors a program may hold, as torch names them.
    devices: frozenset[str] = frozenset({"cpu"})
    # Whether C kernels of users can be called.
    calls_c: bool = False

    def computes_by_loops(self, rows: Size) -> bool:
        """Whether a product of so many rows is loops along its operands, and attention of so many queries two of
        them."""
        return False

    def prepare_rows(self, low: Lowering, x: TensorValue, weight: TensorValue) -> TensorValue:
        """A tensor that is multiplied with a weight, before it is reshaped to rows."""
        return x

    def prepare_table(self, low: Lowering, table: TensorValue) -> TensorValue:
        """A table, of which an operator reads rows at computed places."""
        return table

    def lower_matmul(
        self, low: Lowering, a: TensorValue, b: TensorValue, bias: TensorValue | None, alpha: Any, beta: Any,
        order: Sequence[int] | None
    ) -> TensorValue | None:  # fmt: skip
        """alpha · a · b + beta · bias, as `rules.linalg.matmul.matmul` has it."""
        return None

    def lower_grouped_matmul(self, low: Lowering, step: Gemm, weight: TensorValue, group: Size) -> Stmt | None:
        """The product of one group of rows with its matrix of a weight [groups, depth, columns]."""
        return None

    def lower_convolution(
        self, low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
        windows: ConvWindows,
        transposed: bool
    ) -> TensorValue | None:  # fmt: skip
        """A convolution with a batch, whose result has this shape."""
        return None
