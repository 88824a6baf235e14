"""What is read from nodes."""

from __future__ import annotations

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata


def test_the_fake_mode_is_that_of_the_first_fake_and_else_a_new_one() -> None:
    graph = fx.Graph()
    number, real, fake, other = (graph.placeholder(name) for name in ("number", "real", "fake", "other"))
    modes = [internals.new_fake_mode()[0] for _ in range(2)]
    metadata.set_value(number, 3)
    metadata.set_value(real, torch.zeros(2))
    for node, mode in zip((fake, other), modes, strict=True):
        with mode:
            metadata.set_value(node, (1, torch.zeros(2)))
    assert metadata.fake_mode_of(graph.nodes) is modes[0]
    assert metadata.fake_mode_of([other, fake]) is modes[1]
    assert metadata.fake_mode_of([number, real]) not in modes
    assert metadata.fake_mode_of([]) is not metadata.fake_mode_of([])
