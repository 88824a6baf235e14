"""Every pass pipeline, as data: what runs on a program, in which order, with which options.

    CAPTURE             what `capture` and `from_torchscript` run on what they traced
    DEFAULT             to core ATen operators; the public ingot.passes.DEFAULT_PIPELINE
    NATIVE              to what lowering takes: functional, core operators and those that a target preserves
    TRAINING            to what autograd differentiates before either half goes through NATIVE
    ONNX                to what the ONNX exporter takes
    QUANTIZATION        to what is observed and converted; the program is in evaluation mode
    QUANTIZATION_AWARE  to what trains with quantization simulated

The pass manager runs all of them. A `Stage` with `when` is left out where its condition does not hold; an option that
is a `PipelineArgument` gets its value when the pipeline is run.

Tokens order effects for passes that move nodes by dependence. The passes here keep effects in the graph's order, so
pipelines insert tokens once, after the last retrace, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from ingot.ir.program import Program
from ingot.passes import (
    autocast,
    constant_fold,
    cse,
    dce,
    decompose,
    decompose_complex,
    erase_effect_tokens,
    functionalize,
    grad_mode,
    insert_effect_tokens,
    legalize,
    propagate_known_sizes,
    remove_noops,
    remove_private_writes,
    tracepoints,
)
from ingot.passes.decompose_complex import has_complex
from ingot.passes.manager import PassLike, PipelineArgument, Stage, info_of, stage_of

Pipeline = tuple[PassLike, ...]


def _last_pass_changed(program: Program) -> bool:
    return program.history[-1].changes > 0


# Operators that decompositions leave whole: the target's, or those that ONNX has rules for.
PRESERVED_OPS = PipelineArgument("preserved_ops")

CAPTURE: Pipeline = (tracepoints,)

DEFAULT: Pipeline = (
    tracepoints,
    autocast,
    grad_mode,
    functionalize,
    decompose,
    insert_effect_tokens,
    constant_fold,
    cse,
    dce,
)

NATIVE: Pipeline = (
    tracepoints,
    autocast,
    grad_mode,
    erase_effect_tokens,
    functionalize,
    propagate_known_sizes,  # what lies behind a branch or a loop may have sizes that are known
    constant_fold,  # a batch norm that is gone need not be decomposed
    # First, and apart: legalize alone would take core operators apart that lowering has rules for.
    (decompose, {"keep": PRESERVED_OPS}),
    (legalize, {"keep": PRESERVED_OPS}),
    (decompose_complex, {"keep": PRESERVED_OPS, "parameters": True}),
    Stage(legalize, {"keep": PRESERVED_OPS}, when=_last_pass_changed),
    constant_fold,
    remove_noops,
    cse,
    dce,
)

TRAINING: Pipeline = (
    tracepoints,
    autocast,
    grad_mode,
    functionalize,
    # Else the forward half hands complex numbers to the backward one.
    Stage(decompose, {"keep": PRESERVED_OPS}, when=has_complex),
    Stage(decompose_complex, {"keep": PRESERVED_OPS}, when=has_complex),
    insert_effect_tokens,
)

ONNX: Pipeline = (
    tracepoints,
    autocast,
    grad_mode,
    erase_effect_tokens,
    functionalize,
    propagate_known_sizes,
    constant_fold,
    (decompose, {"keep": PRESERVED_OPS}),
    (legalize, {"keep": PRESERVED_OPS}),
    # What has to stay complex, the exporter takes or refuses by name.
    (decompose_complex, {"keep": PRESERVED_OPS, "parameters": True, "partial": True}),
    Stage(legalize, {"keep": PRESERVED_OPS}, when=_last_pass_changed),
    constant_fold,
    remove_noops,
    cse,
    dce,
)

QUANTIZATION: Pipeline = (
    functionalize,
    (
        constant_fold,
        {"parameters": PipelineArgument("parameters"), "batch_norm": PipelineArgument("batch_norm")},
    ),
    remove_noops,
    dce,
)

QUANTIZATION_AWARE: Pipeline = (autocast, grad_mode, remove_private_writes)

# Optimizations: without them a program computes the same.
OPTIONAL = ("constant_fold", "fold_batch_norm", "remove_noops", "cse")
# Optional parts of a pass: the pass that has them, and the option that switches them.
_PARTS = {"fold_batch_norm": ("constant_fold", "batch_norm")}


def omit_passes(pipeline: Pipeline, disabled: Collection[str]) -> Pipeline:
    """The pipeline without the passes, and the parts of passes, that are disabled by name."""
    off: dict[str, dict[str, bool]] = {}
    for name in disabled:
        if name in _PARTS:
            owner, option = _PARTS[name]
            off.setdefault(owner, {})[option] = False
    made: list[PassLike] = []
    for item in pipeline:
        stage = stage_of(item)
        name = info_of(stage.function).name
        if name in off:
            item = Stage(stage.function, {**stage.options, **off[name]}, stage.when)
        if name not in disabled:
            made.append(item)
    return tuple(made)
