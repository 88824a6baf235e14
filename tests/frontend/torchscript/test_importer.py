"""Where scripts come from, what they need to know, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ingot
from ingot.cli import app
from ingot.errors import CaptureError, DataDependentError, EagerError, StateError, UntraceableError
from ingot.ir import metadata
from ingot.ir.signature import InputKind
from tests.frontend.torchscript import models, models_dynamic_lists, models_exits, models_loops, models_refused
from tests.frontend.torchscript.cases import CASES, Case
from tests.frontend.torchscript.test_models import operators

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# ---------------------------------------------------------------------- from a file, from the command line


@pytest.mark.parametrize(
    "name",
    ["equal parameter and buffer, shared layer", "tied weights", "greedy decoder", "fork and wait", "named tuples"],
)
def test_from_a_file(name: str, tmp_path: Path) -> None:
    case = by_name(name)
    script, arguments = case.script(), case.arguments()
    torch.jit.save(script, str(tmp_path / "m.pt"))
    program = ingot.from_torchscript(tmp_path / "m.pt", arguments[0])
    program.verify()
    before = case.script()
    for args in arguments:
        torch.testing.assert_close(tuple(program(*args)), tuple(before(*args)), rtol=0, atol=0)


def test_from_an_open_file() -> None:
    case = by_name("linear and relu")
    file = io.BytesIO()
    torch.jit.save(case.script(), file, _extra_files={"note.txt": "for whom it may concern"})
    file.seek(0)
    (x,) = case.arguments()[0]
    assert torch.equal(ingot.from_torchscript(file, (x,))(x), case.script()(x))
    with pytest.raises(CaptureError, match="is not a TorchScript file"):
        ingot.from_torchscript(io.BytesIO(b"no archive"))


def test_an_error_in_a_file_names_the_line_of_the_users_module(tmp_path: Path) -> None:
    torch.jit.save(by_name("linear and relu").script(), tmp_path / "m.pt")
    with pytest.raises(EagerError, match=r"(?s)cannot be multiplied.*models.py:\d+: return self.second"):
        ingot.from_torchscript(tmp_path / "m.pt", (torch.ones(2, 5),))


def test_no_file(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"no archive")
    with pytest.raises(CaptureError, match="is not a TorchScript file"):
        ingot.from_torchscript(tmp_path / "bad.pt")


def test_the_command(tmp_path: Path) -> None:
    torch.jit.save(by_name("linear and relu").script(), tmp_path / "m.pt")
    arguments = [
        "capture",
        str(tmp_path / "m.pt"),
        "--input",
        "x=f32[batch,4]",
        "-o",
        str(tmp_path / "m.ingot"),
        "--json",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["dims"] == [{"name": "batch", "low": 1, "high": None}] and data["verified"]
    loaded = ingot.load(tmp_path / "m.ingot")
    assert loaded(torch.zeros(7, 4)).shape == (7, 3)


@pytest.mark.parametrize("given", ["x", "x=f32[", "x=f33[2]", "x=f32[2,-1]", "x=word"])
def test_the_command_refuses_inputs(given: str, tmp_path: Path) -> None:
    torch.jit.save(by_name("linear and relu").script(), tmp_path / "m.pt")
    done = CliRunner().invoke(app, ["capture", str(tmp_path / "m.pt"), "--input", given])
    assert done.exit_code == 2 and "Traceback" not in done.output


# ---------------------------------------------------------------------- without examples


def test_a_trace_remembers_its_arguments() -> None:
    case = by_name("traced convolution net")
    program = ingot.from_torchscript(case.script())
    (x,) = case.arguments()[0]
    assert torch.equal(program(x), case.script()(x))


def test_a_script_says_what_to_give() -> None:
    with pytest.raises(
        CaptureError, match=r"does not say what its arguments are like: x: Tensor.*\n.*\n.*give examples"
    ):
        ingot.from_torchscript(by_name("linear and relu").script())


def test_a_script_with_defaults_needs_none() -> None:
    program = ingot.from_torchscript(torch.jit.script(models_refused.only_defaults))
    assert torch.equal(program(), torch.full((3,), 2.0))


# ---------------------------------------------------------------------- state, identified by identity


def test_parameters_buffers_and_attributes() -> None:
    program = ingot.from_torchscript(by_name("equal parameter and buffer, shared layer").script(), (torch.ones(2, 4),))
    kinds = {i.target: i.kind for i in program.signature.inputs if i.target}
    assert kinds["scale"] is InputKind.PARAMETER and kinds["mean"] is InputKind.BUFFER
    assert kinds["plain"] is InputKind.CONSTANT
    assert [name for name in kinds if name.endswith("weight")] == ["a.weight"]
    assert program.state_dict["a.weight"] is program.state_dict["b.weight"]


def test_the_script_is_left_as_it_was() -> None:
    script = by_name("equal parameter and buffer, shared layer").script()
    program = ingot.from_torchscript(script, (torch.ones(2, 4),))
    program(torch.ones(2, 4))
    assert torch.equal(script.mean, torch.zeros(4))
    assert not torch.equal(program.state_dict["mean"], torch.zeros(4))


def test_a_tuple_without_a_class_is_a_tuple(tmp_path: Path) -> None:
    """torch.max gives values and indices by name, and a script gives them on as a plain tuple."""
    program = ingot.from_torchscript(by_name("several results of an operator").script(), (torch.ones(3),))
    program.save(tmp_path / "m.ingot")
    assert type(program(torch.ones(3))) is type(ingot.load(tmp_path / "m.ingot")(torch.ones(3))) is tuple


def test_a_named_tuple_is_of_the_users_class(tmp_path: Path) -> None:
    program = ingot.from_torchscript(by_name("named tuple returned inside a loop").script(), (torch.ones(3),))
    program.save(tmp_path / "m.ingot")
    for made in (program, ingot.load(tmp_path / "m.ingot")):
        assert isinstance(made(torch.ones(3)), models_exits.Found)


# ---------------------------------------------------------------------- where a node comes from


def test_sources_and_modules() -> None:
    program = ingot.from_torchscript(by_name("linear and relu").script(), (torch.ones(2, 4),))
    nodes = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    source = metadata.source_of(nodes["linear"])
    assert source is not None and source.file == models.__file__ and "self.first(x)" in source.text
    assert metadata.module_path_of(nodes["linear"]) == "first"
    assert [call.path for call in program.module_calls] == ["", "first", "second"]


def test_unflatten_gives_the_modules_back() -> None:
    case = by_name("linear and relu")
    program = ingot.from_torchscript(case.script(), case.arguments()[0], preserve_module_call_signature=("second",))
    whole = program.unflatten()
    assert isinstance(whole.get_submodule("second"), nn.Module)
    for args in case.arguments():
        torch.testing.assert_close(whole(*args), case.script()(*args))


# ---------------------------------------------------------------------- loops


def test_unrolled_on_request() -> None:
    script = torch.jit.script(models_loops.counted)
    x = torch.randn(3)
    kept = ingot.from_torchscript(script, (x, 4))
    written_out = ingot.from_torchscript(script, (x, 4), unroll=True)
    assert "while_loop" in operators(kept) and "while_loop" not in operators(written_out)
    assert torch.equal(kept(x, 4), script(x, 4)) and torch.equal(written_out(x, 4), script(x, 4))


@pytest.mark.parametrize(
    "name",
    [
        *("while on values", "greedy decoder", "branch that writes in place", "return inside a loop", "while True"),
        *("loops with two exits", "named tuple returned inside a loop", "dict of lists returned inside a loop"),
        *("list of an open length", "unbind of an open dim", "list begun before the loop", "list filled backwards"),
        *("traced convolution net", "net optimized for inference"),
        *("int arithmetic at run time", "float arithmetic at run time", "functions of math", "bools at run time"),
    ],
)
def test_pipeline_and_native_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    case = by_name(name)
    program = ingot.from_torchscript(case.script(), case.arguments()[0], dynamic_shapes=case.dynamic)
    lowered = ingot.transform(program, ingot.passes.DEFAULT_PIPELINE)
    compiled = ingot.compile(program)
    ingot.export_onnx(program, tmp_path / "m.onnx")  # compares the numbers itself
    for args in case.arguments():
        wanted = case.script()(*args)
        torch.testing.assert_close(lowered(*args), wanted)
        torch.testing.assert_close(compiled(*args), wanted)


# ---------------------------------------------------------------------- what is refused, and where


@pytest.mark.parametrize(
    ("function", "error", "says", "line"),
    [
        ("grows", DataDependentError, "builds a list", "while bool"),
        ("grows_a_tensor", DataDependentError, "passes a tensor", "while bool"),
        ("picks_from_a_list", DataDependentError, "a list index or length is data-dependent", "parts[int(x.sum())]"),
        ("one_side_is_none", DataDependentError, "where the other returns", "if bool(x.sum() > 0)"),
        ("always_raises", EagerError, "the model is out of order", "raise"),
        ("a_tuple_or_none", DataDependentError, "a tuple of 2 items where the other returns", "if bool(x.sum() < 1)"),
        ("named_by_a_value", UntraceableError, "used for more than a message", "found["),
        (
            "casts_in_a_branch",
            UntraceableError,
            "An autocast region lies inside a data-dependent branch",
            "with torch.autocast",
        ),
        ("fails", EagerError, "RuntimeError: shape '[2, 5]' is invalid", "y.view(2, 5)"),
        ("calls_python", UntraceableError, "left_to_python, a Python function", "left_to_python(x) + 1"),
        ("writes_one_of_two", UntraceableError, "may alias another one", "y.add_(1)"),
    ],
)
def test_refused(function: str, error: type[Exception], says: str, line: str) -> None:
    script = torch.jit.script(getattr(models_refused, function))
    with pytest.raises(error) as caught:
        ingot.from_torchscript(script, (torch.ones(3),))
    message = str(caught.value)
    assert says in message and line in message and "models_refused.py:" in message


@pytest.mark.parametrize(
    ("function", "says", "line"),
    [
        ("one_tensor_all_along", "written to in place after it was appended to a list", "for t in range"),
        ("written_afterwards", "may alias another one", "h.zero_()"),
        ("rows_written_afterwards", "may alias another one", "x.zero_()"),
        ("given_out", "returns a list whose length is data-dependent", "out.append"),
        ("two_a_round", "builds a list or a dict", "for t in range"),
    ],
)
def test_lists_that_are_refused(function: str, says: str, line: str) -> None:
    script = torch.jit.script(getattr(models_dynamic_lists, function))
    with pytest.raises(CaptureError) as caught:
        ingot.from_torchscript(script, (torch.ones(4, 2, 3),), dynamic_shapes={"x": {0: "steps"}})
    message = str(caught.value)
    assert says in message and line in message and "models_dynamic_lists.py:" in message


def test_an_attribute_that_changes_is_refused() -> None:
    script = torch.jit.script(models_refused.Counting())
    with pytest.raises(StateError, match=r"(?s)changes its attribute count.*models_refused.py:\d+: self.count"):
        ingot.from_torchscript(script, (torch.ones(3),))


def test_a_list_that_a_module_holds_and_changes_is_refused() -> None:
    script = torch.jit.script(models_refused.Remembering())
    with pytest.raises(StateError, match=r"(?s)changes its attribute seen.*models_refused.py:\d+: self.seen"):
        ingot.from_torchscript(script, (torch.ones(3),))


def test_not_a_script() -> None:
    with pytest.raises(CaptureError, match=r"not Linear.*\n.*use ingot.capture"):
        ingot.from_torchscript(nn.Linear(2, 2), (torch.ones(2),))


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(CaptureError, match=r"no method 'decode'.*\n.*count, encode, forward"):
        ingot.from_torchscript(by_name("a method of its own").script(), (torch.ones(2, 3),), method="decode")


def test_an_assertion_of_the_script_is_one_of_the_program() -> None:
    case = by_name("assertions")
    program = ingot.from_torchscript(case.script(), case.arguments()[0])
    with pytest.raises(ingot.errors.AssertionFailed, match="there is a nan"):
        program(torch.tensor([1.0, float("nan"), 1.0]))


class _QuantizedWeight(nn.Module):
    """Keeps an instance of a C++ class, as torch's own quantized layers do."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(weight, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.packed.unpack()[0].dequantize().sum()


@pytest.mark.filterwarnings("ignore:.*deprecated.*:UserWarning")
def test_methods_of_a_cpp_class_are_refused_by_name() -> None:
    script = torch.jit.script(_QuantizedWeight())
    with pytest.raises(UntraceableError, match=r"The method unpack of __torch__\.torch\.classes\..*written in C\+\+"):
        ingot.from_torchscript(script, (torch.randn(3),))
