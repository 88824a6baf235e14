"""From a recipe to a table: a backward walk over each graph.

A product has its activations and its weight quantized. What lies before it follows from that: an operator that keeps
values is crossed, so that its input has the parameters of its output, and a sum joins in where all that reads it is
quantized. Everything else stays float, layer norm and softmax among it, and reads floats. So there is one pair of
quantize and dequantize between two quantized operators, and none before an operator that computes in float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from torch import fx

from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.passes.constant_fold import Folding, Level
from ingot.quantization.qscheme import Scheme
from ingot.quantization.quantizable_ops import ACTIVATIONS, JOINING, LINEAR_FORMS, PRODUCTS, Rule, keeps_values, read_by
from ingot.quantization.quantization_plan import Builder, Edge, QuantizationPlan, levels_by_path, nodes_by_place
from ingot.quantization.recipes import Recipe

aten = torch.ops.aten
# What quantize and dequantize take and return.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def annotate(program: Program, recipe: Recipe, *, training: bool = False) -> QuantizationPlan:
    """What a recipe quantizes in a functional program."""
    builder = Builder()
    folding = Folding(program, parameters=True, limit_bytes=0)
    for path, level in levels_by_path(program, training=training).items():
        _AnnotationWalk(builder, folding, level, path, recipe).run()
    return builder.table(nodes_by_place(program))


@dataclass(frozen=True)
class _AnnotationWalk:
    builder: Builder
    folding: Folding
    level: Level
    path: str
    recipe: Recipe

    def run(self) -> None:
        for node in reversed(self.level.module.graph.nodes):
            if node.op != "call_function":
                continue
            product, joining = self._rule(node), JOINING.get(node.target)
            if product is not None:
                self._product(node, product)
            elif joining is not None:
                self._join(node, joining)
            elif keeps_values(node):
                self._keep(node)

    def _rule(self, node: fx.Node) -> Rule | None:
        """The rule of a product: as a linear layer, if it multiplies with a matrix that is a weight."""
        linear = LINEAR_FORMS.get(node.target)
        if linear is not None and not node.kwargs:
            assert linear.weight is not None
            weight: Any = node.args[linear.weight]
            bias: Any = node.args[0] if node.target is aten.addmm.default else None
            is_weight = self.folding.state(self.level, weight) is not None and metadata.value_of(weight).dim() == 2
            if is_weight and (bias is None or metadata.value_of(bias).dim() == 1):
                return linear
        return PRODUCTS.get(node.target)

    def _recipe_at(self, node: fx.Node, rule: Rule) -> Recipe | None:
        names = dict.fromkeys((node.name, str(self._place(node))))  # in a graph inside, by its path as well
        found = self.recipe.select(
            [*(frame.path for frame in metadata.module_stack_of(node)), *(f"@{n}" for n in names)]
        )
        return found if found is not None and rule.kind in found.kinds else None

    def _product(self, node: fx.Node, rule: Rule) -> None:
        recipe = self._recipe_at(node, rule)
        if recipe is None or not _is_float(node):
            return
        weight: Any = node.args[rule.weight] if rule.weight is not None else None
        if rule.weight is not None and recipe.weight is not None:
            if self.folding.state(self.level, weight) is None or not _is_float(weight):
                return  # a weight that is computed or written in each call is not quantized as a weight
            shape = metadata.value_of(weight).shape
            scheme = _fit_scheme(recipe.weight, rule.channels(node), shape[::-1] if rule.transposed else shape)
            if scheme is None:
                return
            self.builder.weight(self._place(node), rule.weight, scheme, rule.transposed)
        activations = read_by(node, rule)
        if recipe.activation is not None and all(map(_is_float, activations)):
            for source in activations:
                self.builder.edge(self._place(source), self._place(node), recipe.activation)

    def _join(self, node: fx.Node, rule: Rule) -> None:
        recipe, sources = self._recipe_at(node, rule), read_by(node, rule)
        scheme = recipe.activation if recipe is not None else None
        if scheme is None or scheme.dynamic or len(sources) != len(rule.activations) or node.kwargs:
            return
        if all(map(_is_float, (node, *sources))) and self._is_quantized_after(node):
            for source in sources:
                self.builder.edge(self._place(source), self._place(node), scheme)

    def _keep(self, node: fx.Node) -> None:
        read = {self.builder.reads(self._place(node), self._place(user)) for user in node.users}
        if len(read) != 1 or not _is_float(node):
            return
        (key,) = read
        if key is None or not isinstance(key[1], Scheme) or key[1].dynamic:
            return
        for source in node.all_input_nodes:
            if _is_float(source):
                self.builder.share(self.builder.edge(self._place(source), self._place(node), key[1]), key)

    def _is_quantized_after(self, node: fx.Node) -> bool:
        """Whether all users of a value read it with a fixed scale, right away or after an activation function."""
        for user in node.users:
            key = self.builder.reads(self._place(node), self._place(user))
            if key is not None and not key[1].dynamic:
                continue
            if user.target not in ACTIVATIONS or not self._is_quantized_after(user):
                return False
        return bool(node.users)

    def _place(self, node: fx.Node) -> Edge:
        return Edge(self.path, node.name)


def _is_float(node: Any) -> bool:
    value = metadata.value_of(node) if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in FLOATS


def _fit_scheme(scheme: Scheme, axis: int, shape: Sequence[int]) -> Scheme | None:
    """A weight's scheme with this operator's channels, and groups that its rows are made of; None if there are none."""
    if scheme.granularity == "channel":
        return replace(scheme, axis=axis)
    if scheme.granularity == "group":
        size = gcd(int(shape[-1]), scheme.group_size)
        return replace(scheme, group_size=size) if size > 1 and len(shape) == 2 else None
    return scheme
