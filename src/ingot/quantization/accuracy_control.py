"""Accuracy control: the layers that lose most stay in float, as few as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.ir.program import Program, check_program
from ingot.quantization.calibration import calibrate, feed
from ingot.quantization.convert import convert
from ingot.quantization.prepare import plan_of, prepare
from ingot.quantization.recipes import Recipe
from ingot.quantization.report import Report, report


@dataclass(frozen=True, slots=True)
class AccuracyControlResult:
    """A quantized program, the layers left in float, and what `evaluate` returned for both programs."""

    program: Program
    in_float: tuple[str, ...]
    float_score: float
    score: float
    trials: tuple[tuple[int, float], ...]  # how many layers were in float, and the score

    @property
    def drop(self) -> float:
        """What quantization lost of the score."""
        return self.float_score - self.score


def accuracy_control(
    program: Program,
    recipe: Recipe,
    data: Sequence[Any],
    evaluate: Callable[[Program], float],
    *,
    max_drop: float,
    call: Callable[[Any, Any], Any] = feed,
    progress: bool = True,
) -> AccuracyControlResult:
    """Quantizes the program and leaves as few layers in float as needed to lose at most `max_drop` of the score.

    `evaluate` takes a program and returns a number; larger is better. Layers are ranked by the noise
    that each adds by itself. More and more of the worst stay in float, twice as many each time, until the score is
    kept; then as many are quantized again as can be. With all layers in float the score is the float program's own.
    """
    check_program(program, "accuracy_control")
    float_score = evaluate(program)
    trials: list[tuple[int, float]] = []
    ranked: list[str] = []

    def attempt(count: int) -> AccuracyControlResult:
        left = tuple(ranked[:count])
        prepared = prepare(program, recipe.leaving([f"@{name}" for name in left]))
        if plan_of(prepared).table.groups:
            calibrate(prepared, data, call=call, progress=progress)
        made = convert(prepared)
        score = evaluate(made)
        trials.append((count, score))
        return AccuracyControlResult(made, left, float_score, score, tuple(trials))

    best = attempt(0)
    if best.drop <= max_drop:
        return best
    ranked.extend(layer.node for layer in _measure(program, best.program, data, call).worst())
    failed, count = 0, 1
    while True:
        best = attempt(min(count, len(ranked)))
        if best.drop <= max_drop or count >= len(ranked):
            break
        failed, count = count, 2 * count
    kept = len(best.in_float)
    while kept - failed > 1:
        middle = (kept + failed) // 2
        tried = attempt(middle)
        if tried.drop <= max_drop:
            best, kept = tried, middle
        else:
            failed = middle
    return AccuracyControlResult(best.program, best.in_float, float_score, best.score, tuple(trials))


def _measure(program: Program, quantized: Program, data: Sequence[Any], call: Callable[[Any, Any], Any]) -> Report:
    return report(program, quantized, data, call=call, show=False)
