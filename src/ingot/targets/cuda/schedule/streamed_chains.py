"""Streamed products that follow one another as one kernel.

    before                                      after
    TiledGemm     y · out + x → z               StreamedChain  StreamedGemm y · out + x → z,
    StreamedGemm  norm(z) · up → u                             StreamedGemm norm(z) · up → u,
    TiledGemm     u · down + z → w                             StreamedGemm u · down + z → w

Such products are as fast as memory gives their weights, and each needs all of what the one before it computes. Between
two kernels memory is idle until the next one has begun and asked for its first weights. In one kernel, the warps that
copy ask for the weights of the next product as soon as they have asked for all of this one: memory is busy while blocks
wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import as_group, plan_group
from ingot.targets.cuda.schedule.streams import MOST_SHARED, plan_ring

# Products of a kernel, at most: more of them would take long to compile, and save little.
MOST_PRODUCTS = 8


def chain_products(module: Module) -> Module:
    """Puts streamed products that follow one another into one kernel; computes the same."""
    done: list[Stmt] = []
    run: list[TiledGemm | StreamedGemm] = []

    def end_run() -> None:
        done.extend([StreamedChain(tuple(run), run[0].origin)] if len(run) > 1 else run)
        run.clear()

    for step in module.steps:
        if as_group(step) is None:
            end_run()
            done.append(step)
            continue
        assert isinstance(step, (TiledGemm, StreamedGemm))
        if len(run) == MOST_PRODUCTS or not _fit([*run, step]):
            end_run()
        run.append(step)
    end_run()
    return replace(module, steps=tuple(done))


def list_groups(steps: Sequence[Stmt]) -> list[StreamedGemm]:
    """The products of a chain, each as a group."""
    groups = [as_group(step) for step in steps]
    return [group for group in groups if group is not None]


def _fit(steps: Sequence[Stmt]) -> bool:
    """Whether slots have room beside the products' rows and sums."""
    return plan_ring([plan_group(group) for group in list_groups(steps)]).plain_shared <= MOST_SHARED // 2


def find_chain_fault(chain: StreamedChain) -> str | None:
    """Why these products cannot be one kernel; None where they can. The members have rules of their own."""
    if not 1 < len(chain.steps) <= MOST_PRODUCTS:
        return f"a chain is two to {MOST_PRODUCTS} products"
    if len(list_groups(chain.steps)) < len(chain.steps):
        return "a product of a chain is not streamed"
    return None if _fit(chain.steps) else "the rows and sums of its products fill the shared memory"
