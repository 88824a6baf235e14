"""Pipelines as data: the manager runs what pipelines.py lists, and nothing runs beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes, pipelines
from ingot.compiler import OPTIONAL_PASSES, run_cpu_pipeline
from ingot.errors import AssertionFailed, PassError
from ingot.ir.program import PassRecord, Program
from ingot.onnx.api import run_onnx_pipeline
from ingot.passes.insert_effect_tokens import _Threading
from ingot.passes.manager import PipelineArgument, Stage, info_of, run_pipeline, stage_of
from ingot.passes.retracing.retrace import Replay
from ingot.targets.cpu.target import CPU

SOURCE = Path(ingot.__file__).parent
ALL = {
    name: value
    for name, value in vars(pipelines).items()
    if name.isupper() and isinstance(value, tuple) and name != "OPTIONAL" and not name.startswith("_")
}


class Plain(nn.Module):
    """Writes to a value of its own, and takes operators that both decompose and legalize replace."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x)).relu_()
        return nn.functional.interpolate(nn.functional.silu(y), scale_factor=2.0)


class Turned(nn.Module):
    """Multiplies complex numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x)
        return torch.view_as_real(z * z)


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async.msg((x.abs() < 100).all(), "x is too large")
        return x * 2


def plain() -> Program:
    torch.manual_seed(0)
    return ingot.capture(Plain().eval(), (torch.randn(1, 3, 6, 6),))


def turned() -> Program:
    return ingot.capture(Turned(), (torch.randn(4, 2),))


def steps(pipeline: Sequence[Any], conditions: bool = False, **given: Any) -> list[tuple[str, Any]]:
    """Names and options of a pipeline's passes, as the history has them, those with a condition or not."""
    found = []
    for stage in map(stage_of, pipeline):
        if stage.when is None or conditions:
            options = {
                name: given.get(value.name, value.name) if isinstance(value, PipelineArgument) else value
                for name, value in stage.options.items()
            }
            found.append((info_of(stage.function).name, tuple(sorted(options.items()))))
    return found


def recorded(history: Sequence[PassRecord]) -> list[tuple[str, Any]]:
    return [(step.name, step.options) for step in history]


# ---------------------------------------------------------------------- the history is the pipeline


def test_every_pipeline_is_a_list_of_registered_passes() -> None:
    assert set(ALL) == {"CAPTURE", "DEFAULT", "NATIVE", "TRAINING", "ONNX", "QUANTIZATION", "QUANTIZATION_AWARE"}
    for pipeline in ALL.values():
        assert all(stage_of(item).function in passes.REGISTRY.values() for item in pipeline)
    assert passes.DEFAULT_PIPELINE is pipelines.DEFAULT


def test_native_code_runs_the_native_pipeline() -> None:
    program = plain()
    assert recorded(program.history) == steps(pipelines.CAPTURE)
    assert recorded(run_cpu_pipeline(program).history) == steps([*pipelines.CAPTURE, *pipelines.NATIVE])
    again = recorded(run_cpu_pipeline(turned()).history)
    assert again == steps([*pipelines.CAPTURE, *pipelines.NATIVE], conditions=True), "complex numbers: legalized again"


def test_onnx_runs_its_pipeline() -> None:
    pytest.importorskip("onnx_ir")
    assert recorded(run_onnx_pipeline(plain()).history) == steps([*pipelines.CAPTURE, *pipelines.ONNX])
    again = recorded(run_onnx_pipeline(turned()).history)
    assert again == steps([*pipelines.CAPTURE, *pipelines.ONNX], conditions=True), "complex numbers: legalized again"


class Branching(nn.Module):
    """What takes functions is captured before autograd runs it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return made


@pytest.mark.parametrize(("model", "shape", "conditions"), [(Branching(), (3, 2), False), (Turned(), (3, 2), True)])
def test_training_runs_its_pipeline_and_both_halves_the_native_one(
    model: nn.Module, shape: tuple[int, ...], conditions: bool
) -> None:
    trained = ingot.compile(model, (torch.randn(shape, requires_grad=True),), training=True)
    with_training = [*pipelines.CAPTURE, *pipelines.TRAINING]
    (graph,) = trained.graphs
    assert graph.program is not None
    assert recorded(graph.program.history) == steps(with_training, conditions)
    for half in (graph.forward, graph.backward):
        assert half is not None
        assert recorded(half.program.history) == steps([*pipelines.CAPTURE, *pipelines.NATIVE])
    trained.close()


class Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        y = x.exp()
        torch._assert_async((y < 100).all(), "too large")
        return y


def test_assertions_of_a_model_that_trains_are_kept_in_order() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    trained = ingot.compile(Positive(), (x,), training=True)
    trained(x).sum().backward()
    assert torch.allclose(x.grad, x.exp())  # type: ignore[arg-type]
    for wrong, message in ((-x, "not positive"), (x * 50, "too large"), (x * torch.tensor([-1, 50]), "not positive")):
        with pytest.raises(AssertionFailed, match=message):
            trained(wrong)
    trained.close()


def test_quantization_runs_its_pipelines() -> None:
    program, recipe = plain(), ingot.quantize.int8_static()
    begun = steps(pipelines.CAPTURE)
    prepared = ingot.quantize.prepare(program, recipe)
    evaluation = steps(pipelines.QUANTIZATION, parameters=True, batch_norm=False)
    assert recorded(prepared.program.history) == begun + evaluation
    prepared(torch.randn(1, 3, 6, 6))
    assert recorded(ingot.quantize.convert(prepared).history) == [*begun, *evaluation, ("convert", ())]
    training = ingot.quantize.prepare_qat(program, recipe)
    aware = begun + steps(pipelines.QUANTIZATION_AWARE)
    assert recorded(training.program.history) == aware
    training.train()(torch.randn(1, 3, 6, 6))
    evaluation = steps(pipelines.QUANTIZATION, parameters=False, batch_norm=False)
    assert recorded(ingot.quantize.convert(training).history) == [*aware, *evaluation, ("convert", ())]


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("QUANTIZATION_AWARE", "CAPTURE")])
def test_snapshots_see_every_pass_and_each_gives_a_program_that_verifies(name: str) -> None:
    program, seen = plain(), list[str]()
    arguments = {"preserved_ops": CPU.preserved_ops(), "parameters": True, "batch_norm": True}
    run_pipeline(
        program, ALL[name], "structure", arguments=arguments, snapshots=lambda stage, program: seen.append(stage)
    )
    assert seen == [step.name for step in program.history[1:]] == [name for name, _ in steps(ALL[name])]


# ---------------------------------------------------------------------- what a pipeline is made of


def test_disabled_passes_are_left_out_by_name() -> None:
    names = [info_of(stage_of(item).function).name for item in pipelines.NATIVE]
    assert set(pipelines.OPTIONAL) <= set(OPTIONAL_PASSES)
    for name in pipelines.OPTIONAL:
        left = [stage_of(item) for item in pipelines.omit_passes(pipelines.NATIVE, {name})]
        if name == "fold_batch_norm":
            folds = [stage.options for stage in left if stage.function is passes.constant_fold]
            assert folds == [{"batch_norm": False}] * 2 and len(left) == len(names)
        else:
            assert [info_of(stage.function).name for stage in left] == [n for n in names if n != name]
    assert pipelines.omit_passes(pipelines.NATIVE, ()) == pipelines.NATIVE
    assert any(s.name == "constant_fold" for s in run_cpu_pipeline(plain()).history)
    assert all(s.name != "constant_fold" for s in run_cpu_pipeline(plain(), {"constant_fold"}).history)


def test_an_argument_is_a_value_or_computed_when_the_pass_runs() -> None:
    seen: list[int] = []

    def count(program: Program, *, limit: int = 0) -> int:
        seen.append(limit)
        return 0

    pipeline = [passes.functionalize, (count, {"limit": PipelineArgument("limit")})]
    program = plain()
    run_pipeline(program, pipeline, arguments={"limit": 7})
    run_pipeline(program, pipeline, arguments={"limit": lambda program: len(program.history)})
    assert seen == [7, 4]
    assert [step.options for step in program.history if step.name == "count"] == [(("limit", 7),), (("limit", 4),)]
    with pytest.raises(PassError, match="argument limit is not given; the pass count needs it"):
        run_pipeline(program, pipeline)


def test_a_stage_whose_condition_does_not_hold_is_not_run() -> None:
    def refuse(program: Program) -> int:
        raise AssertionError("not to be run")

    program = plain()
    run_pipeline(program, [Stage(refuse, when=lambda program: False)])
    assert recorded(program.history) == steps(pipelines.CAPTURE)


def test_native_code_retraces_once_for_decompose_and_once_for_legalize(monkeypatch: pytest.MonkeyPatch) -> None:
    retraced: list[Program] = []
    record_all = Replay.record_all
    monkeypatch.setattr(Replay, "record_all", lambda self, o: (retraced.append(self.program), record_all(self, o))[1])
    run_cpu_pipeline(plain())
    assert len(retraced) == 2


def test_tokens_are_threaded_once_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    threaded: list[Any] = []
    begin = _Threading.__init__
    monkeypatch.setattr(_Threading, "__init__", lambda self, *a: (threaded.append(self), begin(self, *a))[1])
    program = ingot.capture(Asserts(), (torch.randn(3),))
    made = ingot.transform(program, passes.DEFAULT_PIPELINE)
    assert len(threaded) == 1
    assert [s.changes for s in made.history if s.name == "insert_effect_tokens"] != [0]
    run_cpu_pipeline(program)
    assert len(threaded) == 1, "native code keeps effects in the graph's order"
    assert [s.changes > 0 for s in run_cpu_pipeline(made).history if s.name == "erase_effect_tokens"] == [True]
    assert len(threaded) == 1


# ---------------------------------------------------------------------- nothing runs beside the manager


def calls_of_passes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Calls of registered passes: by a name imported from ingot.passes or registered here, or as passes.name."""
    own = {f.name for f in tree.body if isinstance(f, ast.FunctionDef) and f.name in passes.REGISTRY}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ingot.passes"):
            own |= {name.asname or name.name for name in node.names if name.name in passes.REGISTRY}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in own:
            yield called.lineno, called.id
        elif isinstance(called, ast.Attribute) and called.attr in passes.REGISTRY:
            owner = called.value
            if (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in ("passes", called.attr):
                yield called.lineno, called.attr


def test_no_module_calls_a_pass_itself() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}": name
        for path in sorted(SOURCE.rglob("*.py"))
        if "passes" in (text := path.read_text(encoding="utf-8"))
        for line, name in calls_of_passes(ast.parse(text))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "from ingot.passes.dce import dce\ndce(program)",
        "from ingot import passes\npasses.cse(program)",
        "import ingot\ningot.passes.cse(program)",
        "@register(takes=CAPTURED)\ndef dce(program): ...\ndef fold(program): return dce(program)",
        "from ingot.passes import dce as clean, autocast\nautocast(program)",
    ],
)
def test_a_call_beside_the_manager_is_found(text: str) -> None:
    assert len(list(calls_of_passes(ast.parse(text)))) == 1


def test_batch_norm_that_cannot_be_folded_takes_the_rule_for_the_core_operator() -> None:
    """Its decomposition by torch has a square root and a reciprocal, which end in kernels of their own."""

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.linear(x).flatten(0, 1))

    x = torch.randn(2, 5, 8)
    program = run_cpu_pipeline(ingot.capture(Flat().eval(), (x,)))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aten._native_batch_norm_legit_no_training.default" in names and "aten.reciprocal.default" not in names
