"""The backend under test, and what it made of each graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ingot import dynamo
from ingot.dynamo import GraphReport


class Recording:
    """The backend; `reports` has one report for each functional graph."""

    def __init__(self) -> None:
        self.reports: list[GraphReport] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        options = {**given.pop("options", {}), "on_graph": self.reports.append}
        return dynamo.compile_graph(graph, inputs, options=options, **given)

    @property
    def native(self) -> list[bool]:
        """Of each functional graph, whether all of it is native code."""
        return [report.is_native for report in self.reports]

    @property
    def halves(self) -> list[str]:
        return [report.half for report in self.reports]


def close(have: Any, want: Any) -> None:
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
