"""Tables, series, differential equations, spikes and operators between functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Input, Model, integers, normal, uniform

_BATCH = {"batch": 3}
Row = tuple[str, Callable[[], nn.Module], tuple[Input, ...], dict[str, int]]


def tabnet() -> Iterator[Model]:
    from pytorch_tabnet.tab_network import TabNet

    def build(**options: Any) -> nn.Module:
        groups = torch.eye(6)
        module: nn.Module = TabNet(6, 2, n_d=8, n_a=8, n_steps=2, group_attention_matrix=groups, **options)
        return module

    table = (normal("batch", 6),)
    yield Model("pytorch-tabnet", "sparsemax", build, table, _BATCH)
    yield Model("pytorch-tabnet", "entmax", lambda: build(mask_type="entmax"), table, _BATCH)


def rtdl() -> Iterator[Model]:
    import rtdl_num_embeddings as emb
    import rtdl_revisiting_models as rtdl

    table, kinds = normal("batch", 4), integers("batch", 2, high=3)
    yield Model("rtdl-revisiting-models", "MLP",
                lambda: rtdl.MLP(d_in=4, d_out=2, n_blocks=2, d_block=8, dropout=0.1), (table,), _BATCH)  # fmt: skip
    yield Model("rtdl-revisiting-models", "ResNet", lambda: rtdl.ResNet(d_in=4, d_out=2, n_blocks=1, d_block=8,
                d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0), (table,), _BATCH)  # fmt: skip
    options = rtdl.FTTransformer.get_default_kwargs(n_blocks=1) | {"attention_n_heads": 2, "d_block": 16}
    yield Model("rtdl-revisiting-models", "FTTransformer", lambda: rtdl.FTTransformer(n_cont_features=4,
                cat_cardinalities=[3, 3], d_out=2, **options), (table, kinds), _BATCH)  # fmt: skip
    yield Model("rtdl-num-embeddings", "periodic", lambda: emb.PeriodicEmbeddings(4, 8, lite=False), (table,), _BATCH)
    yield Model("rtdl-num-embeddings", "piecewise", lambda: emb.PiecewiseLinearEmbeddings(
                [torch.linspace(-2, 2, 5) for _ in range(4)], 8, activation=True, version="B"), (table,),
                _BATCH)  # fmt: skip


def tabm() -> Iterator[Model]:
    import tabm as package

    table = (normal("batch", 4),)
    for kind in ("tabm", "tabm-mini"):
        build = lambda kind=kind: package.TabM.make(  # noqa: E731
            n_num_features=4, cat_cardinalities=[], d_out=2, arch_type=kind, k=4, n_blocks=1, d_block=8
        )
        yield Model("tabm", kind, build, table, _BATCH)


def deepctr() -> Iterator[Model]:
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    features = [SparseFeat(f"c{n}", 5, embedding_dim=4) for n in range(3)] + [DenseFeat("d", 2)]

    class Raw(nn.Module):
        def __init__(self, cls: Any, options: dict[str, Any]) -> None:
            super().__init__()
            first = () if cls is models.PNN else (features,)
            self.model = cls(*first, features, dnn_hidden_units=(8,), device="cpu", **options)

        def forward(self, kinds: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.model(torch.cat([kinds.to(torch.float32), values], 1))
            return result

    inputs = (integers("batch", 3, high=5), normal("batch", 2))
    for name in ("WDL", "DeepFM", "xDeepFM", "DCN", "DCNMix", "NFM", "AutoInt", "PNN", "FiBiNET", "ONN"):
        options: dict[str, Any] = {"cin_layer_size": (8, 8)} if name == "xDeepFM" else {}
        build = lambda name=name, options=options: Raw(getattr(models, name), options)  # noqa: E731
        yield Model("deepctr-torch", name, build, inputs, _BATCH)


def torchdiffeq() -> Iterator[Model]:
    from torchdiffeq import odeint

    class Flow(nn.Module):
        def __init__(self, method: str) -> None:
            super().__init__()
            self.net, self.method = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)), method
            self.register_buffer("times", torch.linspace(0, 1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = odeint(lambda t, y: self.net(y), x, self.times, method=self.method)
            return result

    for method in ("euler", "midpoint", "heun3", "rk4", "explicit_adams", "dopri5"):
        yield Model("torchdiffeq", method, lambda method=method: Flow(method), (normal("batch", 3),), _BATCH)


def neuraloperator() -> Iterator[Model]:
    from neuralop import models

    yield Model("neuraloperator", "FNO-1d", lambda: models.FNO(n_modes=(4,), in_channels=1, out_channels=1,
                hidden_channels=8, n_layers=2), (normal("batch", 1, 16),), _BATCH)  # fmt: skip
    yield Model("neuraloperator", "FNO-2d", lambda: models.FNO(n_modes=(4, 4), in_channels=1, out_channels=1,
                hidden_channels=8, n_layers=2), (normal("batch", 1, 16, 16),), _BATCH)  # fmt: skip
    yield Model("neuraloperator", "UNO", lambda: models.UNO(in_channels=1, out_channels=1, hidden_channels=8,
                uno_out_channels=[8, 8, 8], uno_n_modes=[[4, 4]] * 3, uno_scalings=[[1, 1]] * 3, n_layers=3,
                channel_mlp_skip="linear"),
                (normal("batch", 1, 16, 16),), _BATCH)  # fmt: skip


def kan() -> Iterator[Model]:
    from kan import KAN
    from kan.KANLayer import KANLayer

    yield Model("pykan", "KANLayer", lambda: KANLayer(4, 3, num=3), (normal("batch", 4),), _BATCH)
    yield Model("pykan", "KAN", lambda: KAN([4, 3, 1], grid=3, auto_save=False), (normal("batch", 4),), _BATCH)


def spikes() -> Iterator[Model]:
    import snntorch as snn

    class Steps(nn.Module):
        def __init__(self, neuron: nn.Module) -> None:
            super().__init__()
            self.first, self.neuron = nn.Linear(6, 4), neuron

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state: Any = self.neuron.reset_mem()
            state, spikes = state if isinstance(state, tuple) else (state,), []
            for step in x.unbind(1):
                spike, *state = self.neuron(self.first(step), *state)
                spikes.append(spike)
            return torch.stack(spikes, 1)

    neurons: dict[str, Callable[[], nn.Module]] = {
        "Leaky": lambda: snn.Leaky(beta=0.9),
        "Lapicque": lambda: snn.Lapicque(beta=0.5),
        "Synaptic": lambda: snn.Synaptic(alpha=0.8, beta=0.9),
        "Alpha": lambda: snn.Alpha(alpha=0.9, beta=0.8),
    }
    for name, neuron in neurons.items():
        yield Model("snntorch", name, lambda neuron=neuron: Steps(neuron()), (normal("batch", 3, 6),), _BATCH)


def spikingjelly() -> Iterator[Model]:
    from spikingjelly.activation_based import functional, layer, neuron

    class Net(nn.Module):
        def __init__(self, cell: nn.Module) -> None:
            super().__init__()
            self.net = nn.Sequential(layer.Linear(6, 4), cell)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            functional.reset_net(self)
            result: torch.Tensor = self.net(x) + self.net(x)
            return result

    for name in ("IFNode", "LIFNode", "ParametricLIFNode", "QIFNode", "EIFNode"):
        cell = getattr(neuron, name)
        yield Model("spikingjelly", name, lambda cell=cell: Net(cell()), (normal("batch", 6),), _BATCH)


def botorch() -> Iterator[Model]:
    from botorch.models.kernels import InfiniteWidthBNNKernel
    from botorch.models.transforms import input as transforms

    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = InfiniteWidthBNNKernel(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.kernel(x).to_dense()
            return result

    yield Model("botorch", "InfiniteWidthBNNKernel", Kernel, (uniform("rows", 3),), {"rows": 4})
    yield Model("botorch", "Warp", lambda: transforms.Warp(3, [0, 1, 2]), (uniform("rows", 3),), {"rows": 4})
    yield Model("botorch", "Normalize", lambda: transforms.Normalize(3, bounds=torch.tensor([[0.0] * 3, [2.0] * 3])),
                (uniform("rows", 3),), {"rows": 4})  # fmt: skip


def others() -> Iterator[Model]:
    """Packages of one model each."""
    import torchsde
    from pytorch_tcn import TCN
    from torchcrf import CRF

    class Sde(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 3)
            self.register_buffer("times", torch.linspace(0, 1, 3))

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.net(y))

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(y)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torchsde.sdeint(self, x, self.times, method="euler", dt=0.25)
            return result

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.crf = CRF(4, batch_first=True)

        def forward(self, x: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.crf(x, tags, reduction="none")
            return result

    yield Model("torchsde", "euler", Sde, (normal("batch", 3),), _BATCH)
    yield Model("pytorch-tcn", "TCN", lambda: TCN(4, [8, 8], kernel_size=3), (normal("batch", 4, "length"),),
                {"batch": 2, "length": 9})  # fmt: skip
    yield Model("pytorch-crf", "CRF", Score, (normal("batch", 5, 4), integers("batch", 5, high=4)), _BATCH)
