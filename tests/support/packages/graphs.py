"""Graphs, geometry and Gaussian processes: torch_geometric, e3nn, gpytorch, escnn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.support.packages.entry import Model, edges, integers, normal

_GRAPH = {"nodes": 6, "edges": 14}


def torch_geometric() -> Iterator[Model]:
    import torch_geometric.nn as gnn

    graph = (normal("nodes", 8), edges("edges", "nodes"))
    convolutions: dict[str, Callable[[], nn.Module]] = {
        "GCNConv": lambda: gnn.GCNConv(8, 6),
        "ChebConv": lambda: gnn.ChebConv(8, 6, K=3),
        "SAGEConv": lambda: gnn.SAGEConv(8, 6),
        "GraphConv": lambda: gnn.GraphConv(8, 6),
        "GATConv": lambda: gnn.GATConv(8, 6, heads=2),
        "GATv2Conv": lambda: gnn.GATv2Conv(8, 6, heads=2),
        "TransformerConv": lambda: gnn.TransformerConv(8, 6, heads=2),
        "TAGConv": lambda: gnn.TAGConv(8, 6),
        "GINConv": lambda: gnn.GINConv(nn.Sequential(nn.Linear(8, 6), nn.ReLU())),
        "ARMAConv": lambda: gnn.ARMAConv(8, 6),
        "SGConv": lambda: gnn.SGConv(8, 6, K=2),
        "APPNP": lambda: gnn.APPNP(K=3, alpha=0.1),
        "ResGatedGraphConv": lambda: gnn.ResGatedGraphConv(8, 6),
        "EdgeConv": lambda: gnn.EdgeConv(nn.Linear(16, 6)),
        "FeaStConv": lambda: gnn.FeaStConv(8, 6),
        "LEConv": lambda: gnn.LEConv(8, 6),
        "ClusterGCNConv": lambda: gnn.ClusterGCNConv(8, 6),
        "GENConv": lambda: gnn.GENConv(8, 6),
        "GatedGraphConv": lambda: gnn.GatedGraphConv(8, 2),
        "SuperGATConv": lambda: gnn.SuperGATConv(8, 6),
        "EGConv": lambda: gnn.EGConv(8, 8, num_heads=2),
        "GeneralConv": lambda: gnn.GeneralConv(8, 6),
        "MFConv": lambda: gnn.MFConv(8, 6),
        "LGConv": lambda: gnn.LGConv(),
        "MixHopConv": lambda: gnn.MixHopConv(8, 6),
    }
    for name, build in convolutions.items():
        yield Model("torch-geometric", name, build, graph, _GRAPH)
    networks: dict[str, Callable[[], nn.Module]] = {
        "GCN": lambda: gnn.GCN(8, 16, 2, 4),
        "GraphSAGE": lambda: gnn.GraphSAGE(8, 16, 2, 4),
        "GIN": lambda: gnn.GIN(8, 16, 2, 4, norm="batch_norm"),
        "GAT": lambda: gnn.GAT(8, 16, 2, 4, jk="cat"),
        "PNA": lambda: gnn.PNA(8, 16, 2, 4, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
                               deg=torch.tensor([1, 3, 2, 1])),
        "EdgeCNN": lambda: gnn.EdgeCNN(8, 16, 2, 4),
        "LINKX": lambda: gnn.models.LINKX(6, 8, 16, 4, 1),
        "DeepGCN": lambda: gnn.DeepGCNLayer(gnn.GENConv(8, 8), nn.LayerNorm(8), nn.ReLU()),
    }  # fmt: skip
    for name, build in networks.items():
        sizes = _GRAPH if name != "LINKX" else {"edges": 14}
        inputs = graph if name != "LINKX" else (normal(6, 8), edges("edges", 6))
        yield Model("torch-geometric", f"model-{name}", build, inputs, sizes)

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph, self.out = gnn.GCN(8, 16, 2), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            pooled = gnn.global_mean_pool(self.graph(x, edge_index), batch, size=3)
            result: torch.Tensor = self.out(pooled)
            return result

    class Sets(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.module(x, batch)
            return result

    rows = integers("nodes", high=3)
    yield Model("torch-geometric", "pooled", Pooled, (*graph, rows), _GRAPH)
    yield Model("torch-geometric", "GraphNorm", lambda: Sets(gnn.GraphNorm(8)), (normal("nodes", 8), rows),
                {"nodes": 6})  # fmt: skip
    yield Model("torch-geometric", "PairNorm", lambda: gnn.PairNorm(), (normal("nodes", 8),), {"nodes": 6})
    yield Model("torch-geometric", "SchNet-block", lambda: gnn.models.schnet.InteractionBlock(8, 5, 8, 4.0),
                (normal("nodes", 8), edges("edges", "nodes"), normal("edges"), normal("edges", 5)), _GRAPH)  # fmt: skip
    yield Model("torch-geometric", "DenseGCNConv", lambda: gnn.DenseGCNConv(8, 6),
                (normal("batch", "nodes", 8), normal("batch", "nodes", "nodes")), {"batch": 2, "nodes": 5})  # fmt: skip


def e3nn() -> Iterator[Model]:
    from e3nn import o3
    from e3nn.nn import Gate, NormActivation

    class Harmonics(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = o3.spherical_harmonics("0e+1o+2e+3o", x, normalize=True)
            return result

    def gate() -> nn.Module:
        module: nn.Module = Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        return module

    points = {"points": 5}
    yield Model("e3nn", "Linear", lambda: o3.Linear("4x0e+2x1o", "3x0e+2x1o"), (normal("points", 10),), points)
    yield Model("e3nn", "FullyConnectedTensorProduct",
                lambda: o3.FullyConnectedTensorProduct("2x0e+2x1o", "1x0e+1x1o", "2x0e+2x1o"),
                (normal("points", 8), normal("points", 4)), points)  # fmt: skip
    yield Model("e3nn", "FullTensorProduct", lambda: o3.FullTensorProduct("1x0e+1x1o", "1x0e+1x1o"),
                (normal("points", 4), normal("points", 4)), points)  # fmt: skip
    yield Model("e3nn", "Norm", lambda: o3.Norm("2x0e+2x1o"), (normal("points", 8),), points)
    yield Model("e3nn", "spherical_harmonics", Harmonics, (normal("points", 3),), points)
    yield Model("e3nn", "Gate", gate, (normal("points", 12),), points)
    yield Model("e3nn", "NormActivation", lambda: NormActivation("2x0e+2x1o", torch.sigmoid), (normal("points", 8),),
                points)  # fmt: skip


def gpytorch() -> Iterator[Model]:
    import gpytorch as gp

    class Kernel(nn.Module):
        def __init__(self, kernel: Any) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.kernel(x, y).to_dense()
            return result

    class Posterior(nn.Module):
        """An exact posterior by hand: a solve with the Cholesky factor."""

        def __init__(self) -> None:
            super().__init__()
            self.kernel = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())
            self.register_buffer("x", torch.linspace(0, 1, 8)[:, None])
            self.register_buffer("y", torch.sin(torch.linspace(0, 6, 8)))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            known = self.kernel(self.x, self.x).to_dense() + 0.1 * torch.eye(8)
            weights = torch.cholesky_solve(self.y[:, None], torch.linalg.cholesky(known))
            result: torch.Tensor = self.kernel(z, self.x).to_dense() @ weights
            return result

    kernels: dict[str, Callable[[], Any]] = {
        "RBF": lambda: gp.kernels.ScaleKernel(gp.kernels.RBFKernel()),
        "RBF-ARD": lambda: gp.kernels.RBFKernel(ard_num_dims=3),
        "Matern": lambda: gp.kernels.MaternKernel(nu=2.5),
        "Matern-0.5": lambda: gp.kernels.MaternKernel(nu=0.5),
        "RQ": lambda: gp.kernels.RQKernel(),
        "Periodic": lambda: gp.kernels.PeriodicKernel(),
        "Cosine": lambda: gp.kernels.CosineKernel(),
        "Linear": lambda: gp.kernels.LinearKernel(),
        "Polynomial": lambda: gp.kernels.PolynomialKernel(power=2),
        "SpectralMixture": lambda: gp.kernels.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=3),
        "sum": lambda: gp.kernels.RBFKernel() + gp.kernels.LinearKernel(),
    }
    sizes = {"rows": 5, "columns": 4}
    for name, kernel in kernels.items():
        build = lambda kernel=kernel: Kernel(kernel())  # noqa: E731
        yield Model("gpytorch", f"kernel-{name}", build, (normal("rows", 3), normal("columns", 3)), sizes)
    yield Model("gpytorch", "posterior", Posterior, (normal("points", 1),), {"points": 5})
