"""Copies of a program's state and arguments: running on them leaves the caller's as they are."""

from __future__ import annotations

from typing import Any

import torch

from ingot.ir.program import Program

SEED = 20  # of the random numbers that a program draws, and of generated inputs


def copy_state(program: Program) -> Program:
    """The same program on copies of its tensors, tied ones still tied."""
    made = {id(t): t.detach().clone() for t in (*program.state_dict.values(), *program.constants.values())}
    running = Program(
        graph_module=program.graph_module,
        signature=program.signature,
        state_dict={name: made[id(t)] for name, t in program.state_dict.items()},
        constants={name: made[id(t)] for name, t in program.constants.items()},
        dims=program.dims,
        constraints=program.constraints,
        parameter_names=program.parameter_names,
    )
    return running


def clone_tensors(leaves: list[Any]) -> list[Any]:
    made = {id(x): x.detach().clone() for x in leaves if isinstance(x, torch.Tensor)}
    return [made.get(id(x), x) for x in leaves]
