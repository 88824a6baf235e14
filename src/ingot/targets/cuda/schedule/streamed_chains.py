"""Streamed products that follow one another as one kernel.

    before                                      after
    TiledGemm     y · out + x → z               StreamedChain  StreamedGemm y · out + x → z,
    StreamedGemm  norm(z) · up → u                             StreamedGemm norm(z) · up → u,
    TiledGemm     u · down + z → w                             StreamedGemm u · down + z → w

Such products are as fast as memory gives their weights, and each needs all of what the one before it computes. Between
two kernels memory is idle until the next one has begun and asked for its first weights. In one kernel, the warps that
copy ask for the weights of the next product as soon as they have asked for all of this one: memory is busy while blocks
wait for each other.

Attention of one token, whose result such a kernel's first product multiplies, becomes the kernel's first phase: the
weights of that product are on their way meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.loop_ir import Attention, Buffer, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.layers.token_phases import find_phase_fault, plan_phase
from ingot.targets.cuda.schedule.statements import StreamedChain, StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import as_group, count_users, plan_group
from ingot.targets.cuda.schedule.streams import MOST_SHARED, RingPlan, plan_ring

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


def chain_attention(module: Module) -> Module:
    """Puts attention of one token into the kernel of the products behind it; computes the same."""
    done: list[Stmt] = []
    for step in module.steps:
        before = done[-1] if done else None
        if isinstance(step, StreamedChain) and isinstance(before, Attention):
            made = replace(step, steps=(before, *step.steps))
            alone = all(count_users(module, name) == 2 for name in made.local_buffers()[:1])
            if alone and find_chain_fault(made, module.buffers) is None:
                done[-1] = made
                continue
        done.append(step)
    return replace(module, steps=tuple(done))


def list_groups(steps: Sequence[Stmt]) -> list[StreamedGemm]:
    """The products of a chain, each as a group."""
    groups = [as_group(step) for step in steps]
    return [group for group in groups if group is not None]


def plan_chain(chain: StreamedChain) -> RingPlan:
    """The shared memory of a chain's kernel."""
    attention = chain.attention
    tile = None if attention is None else plan_phase(attention)
    beside = 0 if tile is None or attention is None else tile.memory_size(attention.depth)
    return plan_ring([plan_group(group) for group in list_groups(chain.steps)], beside)


def _fit(steps: Sequence[TiledGemm | StreamedGemm]) -> bool:
    """Whether slots have room beside the products' rows and sums."""
    return plan_chain(StreamedChain(tuple(steps))).plain_shared <= MOST_SHARED // 2


def find_chain_fault(chain: StreamedChain, buffers: Mapping[str, Buffer]) -> str | None:
    """Why these steps cannot be one kernel; None where they can. The members have rules of their own."""
    products, attention = chain.products, chain.attention
    if len(products) + (attention is not None) < len(chain.steps):
        return "attention is the first step of a chain"
    if not 1 < len(products) <= MOST_PRODUCTS:
        return f"a chain is two to {MOST_PRODUCTS} products"
    if len(list_groups(products)) < len(products):
        return "a product of a chain is not streamed"
    if attention is not None:
        fault = find_phase_fault(attention, products[0], buffers)
        row = {store.buffer for store in attention.epilogue.stores}
        if fault is None and any(row & set().union(*reads_and_writes(step)) for step in products[1:]):
            fault = "a later product of the chain uses the row that its attention computes"
        if fault is not None:
            return fault
    shared = plan_chain(chain).plain_shared
    return None if shared <= MOST_SHARED // 2 else "the rows and sums of its products fill the shared memory"
