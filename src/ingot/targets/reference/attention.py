"""Attention and its gradient: all scores of a point of the batch at once.

The scores are sums in float64 that are rounded to the step's dtype before a body reads them; softmax and the sums of
values are computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ingot.lowering.loop_ir import (
    Attention,
    AttentionBackward,
    BlockMask,
    Body,
    ClassifyMaskBlocks,
    Loop,
    Store,
)
from ingot.targets.base import Fault
from ingot.targets.reference.index_grid import IndexGrid, evaluate_index, make_grid
from ingot.targets.reference.memory import Array, computed_type

if TYPE_CHECKING:
    from ingot.targets.reference.interpreter import Interpreter


def _batch_points(run: Interpreter, batch: Sequence[Loop]) -> Iterator[tuple[int, dict[str, Array]]]:
    """Each point of the batch loops, by its number, with the loops' variables."""
    extents = run.extents(batch)
    for number, place in enumerate(np.ndindex(*extents)):
        yield number, {loop.variable: np.asarray(at, np.int64) for loop, at in zip(batch, place, strict=True)}


def _pairs(point: dict[str, Array], queries: int, keys: int) -> IndexGrid:
    """Every pair of a query i and a key j at one point of the batch."""
    grid = make_grid(("i", "j"), (queries, keys))
    return IndexGrid(grid.shape, {**grid.variables, **point})


def _evaluate(run: Interpreter, body: Body, grid: IndexGrid, **given: Array) -> list[Array]:
    evaluator = run.evaluate(body, grid, given)
    return [np.broadcast_to(evaluator.values[result], grid.shape) for result in body.results]


def classify_mask_blocks(run: Interpreter, step: ClassifyMaskBlocks) -> None:
    queries, keys = run.size(step.queries), run.size(step.keys)
    found = []
    for _, point in _batch_points(run, step.batch):
        if not queries or not keys:
            continue
        (holds,) = _evaluate(run, step.mask, _pairs(point, queries, keys))
        for top in range(0, queries, step.high):
            for left in range(0, keys, step.wide):
                block = holds[top : top + step.high, left : left + step.wide]
                found.append(0 if not block.any() else 2 if block.all() else 1)
    run.write(step.buffer, np.asarray(found, np.uint8))
    run.block_sizes[step.buffer] = (step.high, step.wide)


def _spread_blocks(run: Interpreter, blocks: BlockMask, point: dict[str, Array], queries: int, keys: int) -> Array:
    """What a table of blocks says of each pair: 0, 1 or 2."""
    if blocks.buffer not in run.block_sizes:
        raise Fault(f"no step has classified the blocks {blocks.buffer}")
    high, wide = run.block_sizes[blocks.buffer]
    columns = run.size(blocks.columns)
    offset = int(evaluate_index(blocks.offset, {**run.sizes, **point}))
    places = offset + np.arange(queries)[:, None] // high * columns + np.arange(keys)[None] // wide
    return run.memory.load(blocks.buffer, places)


def run_attention(run: Interpreter, step: Attention) -> None:
    queries, keys = run.size(step.queries), run.size(step.keys)
    type_ = computed_type(step.dtype)
    if tuple(step.epilogue.loops[: len(step.batch)]) != step.batch:
        raise Fault("the outer loops of its epilogue are not its own")
    q, k = (run.matrices(view, step.batch, rows, step.depth) for view, rows in ((step.q, queries), (step.k, keys)))
    v = run.matrices(step.v, step.batch, keys, step.values)
    outputs = []
    for number, point in _batch_points(run, step.batch):
        scores = _score(run, step, q[number], k[number], point)
        with np.errstate(all="ignore"):
            top = scores.max(1, initial=-np.inf).astype(np.float64)
            weights = np.exp(scores.astype(np.float64) - np.where(top == -np.inf, 0, top)[:, None])
            total = weights.sum(1)
            # A query whose keys are all hidden has a total of 0: its result is 0, as torch has it.
            share = np.where(total == 0, 0, 1 / total)
            outputs.append(((weights @ v[number].astype(np.float64)) * share[:, None]).astype(type_))
            lse = np.where(total == 0, top, top + np.log(total))
        for store, value in ((step.lse, lse), (step.top, top)):
            if store is not None:
                _store_rows(run, store, point, value.astype(type_))
    run.run_epilogue(step.epilogue, np.stack(outputs) if outputs else np.empty(0, type_))


def _score(run: Interpreter, step: Attention, q: Array, k: Array, point: dict[str, Array]) -> Array:
    """The scores of all pairs, -inf where they do not count."""
    grid = _pairs(point, q.shape[0], k.shape[0])
    with np.errstate(all="ignore"):
        scores = (step.scale * (q.astype(np.float64) @ k.astype(np.float64).T)).astype(computed_type(step.dtype))
    if not grid.size:
        return scores
    if step.score is not None:
        (scores,) = _evaluate(run, step.score, grid, accumulator=scores)
    counts = np.ones(grid.shape, np.bool_)
    if step.mask is not None:
        counts = _evaluate(run, step.mask, grid)[0].astype(np.bool_)
    if step.tiles is not None:
        kinds = _spread_blocks(run, step.tiles, point, *grid.shape)
        counts = np.where(kinds == 0, False, np.where(kinds == 2, True, counts))
    if step.causal:
        counts = counts & (grid.variables["j"] <= grid.variables["i"])
    return np.where(counts, scores, np.asarray(-np.inf, scores.dtype))


def _store_rows(run: Interpreter, store: Store, point: dict[str, Array], values: Array) -> None:
    rows = make_grid(("i",), (values.size,))
    grid = IndexGrid(rows.shape, {**rows.variables, **point})
    index = np.asarray(evaluate_index(store.index, {**run.sizes, **grid.variables}), np.int64)
    run.store(store, values, grid, index, False)


def run_attention_backward(run: Interpreter, step: AttentionBackward) -> None:
    queries, keys = run.size(step.queries), run.size(step.keys)
    image_count, head_count = run.extents(step.batch)
    q = run.matrices(step.q, step.batch, queries, step.depth)
    k = run.matrices(step.k, step.batch, keys, step.depth)
    v = run.matrices(step.v, step.batch, keys, step.values)
    gradient = run.matrices(step.gradient, step.batch, queries, step.values)
    images, heads = image_count // max(run.size(step.images), 1), head_count // max(run.size(step.heads), 1)
    along_queries = step.side == "queries"
    shape = (image_count, head_count, queries) if along_queries else (images, heads, keys)
    first, second = np.zeros((*shape, step.depth)), np.zeros((*shape, step.values))
    for number, point in _batch_points(run, step.batch):
        results, shown = _evaluate_pairs(run, step, q[number], k[number], v[number], gradient[number], point)
        if not results:
            continue
        slopes = np.where(shown, results[0], 0).astype(np.float64)
        image, head = divmod(number, head_count)
        if along_queries:
            first[image, head] = step.scale * (slopes @ k[number].astype(np.float64))
            _scatter(run, step, results[1:], shown, {**point, "part": np.asarray(number % step.parts, np.int64)})
            continue
        owner = image // run.size(step.images), head // run.size(step.heads)
        first[owner] += step.scale * (slopes.T @ q[number].astype(np.float64))
        second[owner] += np.where(shown, results[1], 0).astype(np.float64).T @ gradient[number].astype(np.float64)
    run.write(step.first, first.astype(computed_type(step.dtype)))
    if not along_queries:
        run.write(step.second, second.astype(computed_type(step.dtype)))


def _evaluate_pairs(
    run: Interpreter,
    step: AttentionBackward,
    q: Array,
    k: Array,
    v: Array,
    gradient: Array,
    point: dict[str, Array],
) -> tuple[list[Array], Array]:
    """What the body gives for every pair, and which pairs are in a block that is not hidden whole."""
    grid = _pairs(point, q.shape[0], k.shape[0])
    type_ = computed_type(step.dtype)
    if not grid.size:
        return [], np.zeros(grid.shape, np.bool_)
    given = {
        "accumulator": (step.scale * (q.astype(np.float64) @ k.astype(np.float64).T)).astype(type_),
        "gradient": (gradient.astype(np.float64) @ v.astype(np.float64).T).astype(type_),
    }
    results = _evaluate(run, step.body, grid, **given)
    if step.tiles is None:
        return results, np.ones(grid.shape, np.bool_)
    kinds = _spread_blocks(run, step.tiles, point, *grid.shape)
    if step.masked is not None:
        masked = _evaluate(run, step.masked, grid, **given)
        results = [np.where(kinds == 1, hidden, plain) for hidden, plain in zip(masked, results, strict=True)]
    return results, kinds != 0


def _scatter(
    run: Interpreter, step: AttentionBackward, values: Sequence[Array], shown: Array, point: dict[str, Array]
) -> None:
    """Adds results to tables. Pairs in hidden blocks add nothing."""
    for scatter, value in zip(step.scatter, values, strict=True):
        grid = _pairs(point, *shown.shape)
        evaluator = run.evaluate(scatter.body, grid)
        index = evaluator.index(scatter.store.index)
        run.store(scatter.store, np.where(shown, value, 0).astype(np.float64), grid, index, True)
