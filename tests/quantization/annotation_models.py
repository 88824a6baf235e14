"""Models and quantizers of torchao's for each kind of annotation: what is shared, derived and fixed, and by whom.

A case is a model, data, and what makes a quantizer anew, for quantizers keep what they annotated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import fx, nn

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """`trains`: with training; `why` says where torchao is wrong, so that nobody expects its numbers."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, ...]]
    quantizer: Callable[[], Any]
    trains: bool = False
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {'trained' if self.trains else 'calibrated'}"

    def batches(self, count: int = 3) -> list[tuple[Any, ...]]:
        torch.manual_seed(2)
        return [self.batch() for _ in range(count)]

    def made(self) -> nn.Module:
        torch.manual_seed(1)
        return self.model()


# ---------------------------------------------------------------------- models


class Residual(nn.Module):
    """Convolutions, a sum, pooling by maximum and by mean, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        x = torch.relu(self.norm(self.b(x)) + x)
        x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        made: torch.Tensor = self.last(x)
        return made


class Joined(nn.Module):
    """Two branches of different ranges, concatenated, and the result concatenated again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(11, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.c(torch.cat([torch.cat([self.a(x), 3 * self.b(x)], 1), x], 1))
        return made


class Layers(nn.Module):
    """Linear layers with and without bias and activation, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(24, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.c(self.b(torch.relu(self.a(x))) + x)
        return made


class Words(nn.Module):
    """An embedding and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 16), nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.table(ids))
        return made


class Recurrent(nn.Module):
    """Three steps of an LSTM, its gates written out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(8, 32), nn.Linear(8, 32, bias=False), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        for step in range(3):
            i, f, g, o = (self.inner(x[:, step]) + self.outer(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        made: torch.Tensor = self.head(h)
        return made


class Attending(nn.Module):
    """One head of attention, both products written out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(self.q(x), self.k(x).transpose(1, 2)) / 4
        made: torch.Tensor = self.out(torch.matmul(scores.softmax(-1), self.v(x)))
        return made


def image() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 8, 8),)


def rows() -> tuple[Any, ...]:
    return (torch.randn(6, 16),)


def words() -> tuple[Any, ...]:
    return (torch.randint(0, 20, (2, 6)),)


def sequence() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 8),)


def tokens() -> tuple[Any, ...]:
    return (torch.randn(2, 5, 16),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "residual": (Residual, image),
    "cat": (Joined, image),
    "linear": (Layers, rows),
    "embedding": (Words, words),
    "lstm": (Recurrent, sequence),
    "attention": (Attending, tokens),
}


# ---------------------------------------------------------------------- quantizers


def xnnpack(**words: Any) -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**words))


def x86(**words: Any) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as source

    made = source.X86InductorQuantizer()
    made.set_global(source.get_default_x86_inductor_quantization_config(**words))
    return made


def x86_matmul() -> Any:
    """Its quantizer with what it leaves out unless asked: products of two activations."""
    made = x86()
    made.set_function_type_qconfig(torch.matmul, made.get_global_quantization_config())
    return made


def arm(**words: Any) -> Any:
    from torchao.quantization.pt2e.quantizer import arm_inductor_quantizer as source

    made = source.ArmInductorQuantizer()
    made.set_global(source.get_default_arm_inductor_quantization_config(**words))
    return made


def xpu() -> Any:
    from torchao.quantization.pt2e.quantizer import xpu_inductor_quantizer as source

    made = source.XPUInductorQuantizer()
    made.set_global(source.get_default_xpu_inductor_quantization_config())
    return made


def embedding() -> Any:
    from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

    return EmbeddingQuantizer()


def composed() -> Any:
    from torchao.quantization.pt2e.quantizer.composable_quantizer import ComposableQuantizer

    return ComposableQuantizer([embedding(), xnnpack()])


# ---------------------------------------------------------------------- annotations by hand, with torchao's classes


@dataclass(frozen=True)
class Specs:
    """torchao's classes, and specs of int8 for activations and weights, calibrated or trained."""

    trains: bool
    per_channel: bool = False

    @property
    def activation(self) -> Any:
        return self._spec(torch.per_tensor_affine, (-128, 127))

    @property
    def weight(self) -> Any:
        if self.per_channel:
            return self._spec(torch.per_channel_symmetric, (-127, 127), ch_axis=0)
        return self._spec(torch.per_tensor_symmetric, (-127, 127))

    def _spec(self, scheme: torch.qscheme, limits: tuple[int, int], **words: Any) -> Any:
        from torchao.quantization.pt2e import fake_quantize, observer

        channel = "ch_axis" in words
        if self.trains:
            watching = (
                observer.MovingAveragePerChannelMinMaxObserver if channel else observer.MovingAverageMinMaxObserver
            )
            maker: Any = fake_quantize.FusedMovingAvgObsFakeQuantize.with_args(observer=watching)
        else:
            maker = observer.PerChannelMinMaxObserver if channel else observer.MinMaxObserver
        return self.plain(torch.int8, maker, *limits, scheme, **words)

    @property
    def plain(self) -> Any:
        from torchao.quantization.pt2e.quantizer import QuantizationSpec

        return QuantizationSpec

    def shared(self, with_what: Any) -> Any:
        from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

        return SharedQuantizationSpec(with_what)

    def fixed(self, scale: float, zero: int) -> Any:
        from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec

        return FixedQParamsQuantizationSpec(torch.uint8, scale, zero, 0, 255, torch.per_tensor_affine)

    def bias(self, user: Any) -> Any:
        """int32 with the scale of what a product sums up: that of its input times that of its weight."""
        from torchao.quantization.pt2e.quantizer import DerivedQuantizationSpec

        def derive(sources: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            (x, _), (w, _) = (source.calculate_qparams() for source in sources)
            return x * w, torch.zeros_like(w, dtype=torch.int32)

        edges = [(user.args[0], user), (user.args[1], user)]
        scheme = torch.per_channel_symmetric if self.per_channel else torch.per_tensor_symmetric
        axis = 0 if self.per_channel else None
        return DerivedQuantizationSpec(edges, derive, torch.int32, -(2**31), 2**31 - 1, scheme, axis)


Writer = Callable[[dict[Any, list[fx.Node]], Callable[..., None], Specs], None]


def annotating(write: Writer, specs: Specs) -> Any:
    """A Quantizer that is one function: of nodes by operator, and of what annotates one of them."""
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer

    class Annotating(Quantizer):  # type: ignore[misc]
        def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
            nodes: dict[Any, list[fx.Node]] = {}
            for node in model.graph.nodes:
                nodes.setdefault(node.target, []).append(node)

            def note(node: fx.Node, inputs: dict[fx.Node, Any], output: Any = None, **words: Any) -> None:
                made = QuantizationAnnotation(inputs, output, _annotated=True, **words)
                node.meta["quantization_annotation"] = made

            write(nodes, note, specs)
            return model

        def validate(self, model: fx.GraphModule) -> None:
            pass

    return Annotating()


class Convolutions(nn.Module):
    """Two convolutions with bias, one behind the other, and a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.b(self.a(x)))


class Normed(nn.Module):
    """A convolution, perhaps with bias and with every literal another than by default, batch norm, relu."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, stride=2, padding=4, dilation=2, groups=2, bias=bias)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Summed(nn.Module):
    """A convolution, a sum in place, relu in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        y += x
        return nn.functional.relu_(y)


class Pooled(nn.Module):
    """What keeps values, one behind the other, and a sum with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.max_pool2d(nn.functional.hardtanh(self.conv(x)), 2)
        return y + y.flip(0)


def derived_bias(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    for conv in nodes[aten.conv2d.default]:
        x, weight, bias = conv.args[:3]
        note(conv, {x: specs.activation, weight: specs.weight, bias: specs.bias(conv)})
    for last in nodes.get(aten.relu.default, ()):
        note(last, {}, specs.activation)


def between(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    """What lies between a convolution and its batch norm is quantized."""
    (conv,) = nodes[aten.conv2d.default]
    note(conv, {conv.args[0]: specs.activation, conv.args[1]: specs.weight}, specs.activation)


def fixed_results(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    for conv in nodes[aten.conv2d.default]:
        note(conv, {conv.args[0]: specs.activation, conv.args[1]: specs.weight})
    (sigmoid,) = nodes[aten.sigmoid.default]
    note(sigmoid, {sigmoid.args[0]: specs.activation}, specs.fixed(1 / 256, 0))


def shared_weights(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    first, second = nodes[aten.conv2d.default]
    note(first, {first.args[0]: specs.activation, first.args[1]: specs.weight})
    note(second, {second.args[0]: specs.activation, second.args[1]: specs.shared((first.args[1], first))})


def shared_along(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    """Each shares with the one before: an input with an output, an output with an input."""
    (conv,) = nodes[aten.conv2d.default]
    note(conv, {conv.args[0]: specs.activation, conv.args[1]: specs.weight}, specs.activation)
    before = conv
    for target in (aten.hardtanh.default, aten.max_pool2d.default, aten.flip.default):
        (node,) = nodes[target]
        note(node, {node.args[0]: specs.shared(before)}, specs.shared((node.args[0], node)))
        before = node
    (add,) = nodes[aten.add.Tensor]
    one, other = add.args
    note(add, {one: specs.activation, other: specs.shared((one, add))}, specs.activation)


def apart(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    """Two readers of a value that share nothing."""
    for conv in nodes[aten.conv2d.default]:
        words = {"allow_implicit_sharing": False}
        note(conv, {conv.args[0]: specs.activation, conv.args[1]: specs.weight}, specs.activation, **words)


def whole_weights(nodes: dict[Any, list[fx.Node]], note: Callable[..., None], specs: Specs) -> None:
    """A weight of 31 bits with a zero point."""
    from torchao.quantization.pt2e.fake_quantize import FusedMovingAvgObsFakeQuantize

    (conv,) = nodes[aten.conv2d.default]
    wide = specs.plain(torch.int32, FusedMovingAvgObsFakeQuantize, 0, 2**31 - 1, torch.per_tensor_affine)
    note(conv, {conv.args[0]: specs.activation, conv.args[1]: wide})
    (norm,) = nodes[aten.batch_norm.default]
    note(norm, {}, specs.activation)


# ---------------------------------------------------------------------- cases


def four_channels() -> tuple[Any, ...]:
    return (torch.randn(2, 4, 9, 9),)


_FLOAT_ZERO = "torchao: a zero point between two numbers, and then numbers are cut off, not rounded"
_BETWEEN = "torchao: what is quantized is the convolution with its weight scaled and without its bias"
_NO_BIAS = "torchao: the bias is not rounded in training"

QUANTIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any], bool]] = {
    "XNNPACK by tensor": (xnnpack, {}, False),
    "XNNPACK by channel": (xnnpack, {"is_per_channel": True}, False),
    "XNNPACK dynamic": (xnnpack, {"is_per_channel": True, "is_dynamic": True}, False),
    "X86Inductor": (x86, {}, False),
    "X86Inductor dynamic": (x86, {"is_dynamic": True}, False),
    "X86Inductor with matmul": (x86_matmul, {}, False),
    "ArmInductor": (arm, {}, False),
    "XPUInductor": (xpu, {}, False),
    "Embedding": (embedding, {}, False),
    "Composable (Embedding, XNNPACK)": (composed, {}, False),
    "XNNPACK": (xnnpack, {"is_per_channel": True, "is_qat": True}, True),
    "X86Inductor for training": (x86, {"is_qat": True}, True),
    "ArmInductor for training": (arm, {"is_qat": True}, True),
}

SPECS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], Writer]] = {
    "derived bias": (Convolutions, image, derived_bias),
    "derived bias, batch norm behind": (Normed, four_channels, derived_bias),
    "fixed": (Convolutions, image, fixed_results),
    "shared weights": (Convolutions, image, shared_weights),
    "shared along a chain": (Pooled, image, shared_along),
    "shared by nobody": (Joined, image, apart),
    "between convolution and batch norm": (Normed, four_channels, between),
}


def by_quantizer() -> Iterator[Case]:
    """Every quantizer that ships with torchao on every model that it has something to say of."""
    for name, (make, words, trains) in QUANTIZERS.items():
        for model, (build, batch) in MODELS.items():
            if "Embedding" in name and model != "embedding":
                continue
            why = _FLOAT_ZERO if "Embedding" in name else ""
            yield Case(f"{name}, {model}", build, batch, partial(make, **words), trains, why)


def by_spec() -> Iterator[Case]:
    """Every kind of spec, calibrated and trained, by tensor and by channel."""
    for name, (build, batch, write) in SPECS.items():
        for trains, per_channel in product((False, True), (False, True)):
            why = {"derived bias": _NO_BIAS, "between convolution and batch norm": _BETWEEN}.get(name, "")
            quantizer = partial(annotating, write, Specs(trains, per_channel))
            scales = "by channel" if per_channel else "by tensor"
            yield Case(f"{name}, {scales}", build, batch, quantizer, trains, why if trains else "")
    quantizer = partial(annotating, whole_weights, Specs(True))
    yield Case("weights of 31 bits", Normed, four_channels, quantizer, True)
    for bias in (False, True):
        words = {"is_per_channel": True, "is_qat": True}
        named = f"every literal another, {'bias' if bias else 'no bias'}"
        yield Case(named, partial(Normed, bias), four_channels, partial(xnnpack, **words), True)
    yield Case("a sum in place", Summed, image, partial(xnnpack, **words), True)
