"""What one scheduling pass makes of a module, as text."""

from __future__ import annotations

from ingot.lowering.loop_ir_printer import print_steps
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.pipeline import schedule


def print_pass(module: Module, name: str) -> str:
    """The steps before and after the pass; those of the last time that it ran and changed something."""
    found: list[str] = []

    def observe(ran: str, before: Module, after: Module) -> None:
        texts = [print_steps(one.steps, locations=False) for one in (before, after)]
        if ran == name and texts[0] != texts[1]:
            found.append(f"// before {name}\n{texts[0]}\n// after {name}\n{texts[1]}")

    schedule(module, observe=observe)
    assert found, f"{name} changed nothing"
    return found[-1]
