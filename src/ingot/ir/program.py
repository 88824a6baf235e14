"""A captured model: a lifted FX graph, its signature, its state, its module calls, and what was done to it.

    program = ingot.capture(model, (x,))
    program(x)                      runs through torch: the reference meaning
    print(program)                  readable code with shapes, module paths and the user's lines
    program.module()                an nn.Module that trains
    program.unflatten()             an nn.Module with the original hierarchy
    program.save("m.ingot")         one file; ingot.load reads it

A Program shares parameters with the model that it was captured from, and owns a copy of the buffers that it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn

from ingot._pages import call_viewer
from ingot.errors import NotAProgram, StateDictError, format_error
from ingot.ir.dialects import CAPTURED, Dialect
from ingot.ir.signature import Input, InputKind, ModuleCall, Signature
from ingot.ir.symbolic_dims import Constraint, Dim

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ingot.viewer.entry import ModelView


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One thing that was done to a program: a pass with its options, what it changed, and how long it took."""

    name: str
    changes: int
    seconds: float
    nodes_before: int
    nodes_after: int
    options: tuple[tuple[str, Any], ...] = ()


class Program:
    """A captured model: a torch.fx graph in lifted form, its signature and its state.

    Calling it runs the graph through torch; `print(program)` shows it as code with shapes, module paths and source
    lines. It shares parameters with the model that it was captured from, and owns a copy of the buffers that it writes.

    Attributes, to be read; passes change them:

    - `graph_module`, `graph`: the torch.fx graph. Regions are sub-GraphModules.
    - `signature`: what each input and output is, and how the user's arguments and results are nested.
    - `state_dict`, `constants`: tensors by name.
    - `dims`, `constraints`: dynamic sizes with their ranges, and the conditions on them.
    - `module_calls`: the calls of modules whose signature is preserved.
    - `example_inputs`: the arguments of the capture.
    - `dialect`, `history`: which operators the graph may hold, and the passes that ran.
    """

    def __init__(
        self,
        *,
        graph_module: fx.GraphModule,
        signature: Signature,
        state_dict: Mapping[str, torch.Tensor],
        constants: Mapping[str, torch.Tensor],
        module_calls: tuple[ModuleCall, ...] = (),
        dims: tuple[Dim, ...] = (),
        constraints: tuple[Constraint, ...] = (),
        parameter_names: tuple[str, ...] = (),
        example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        training: bool = False,
        dialect: Dialect = CAPTURED,
        history: tuple[PassRecord, ...] = (),
    ) -> None:
        self.graph_module = graph_module
        self.signature = signature
        self.state_dict = dict(state_dict)
        self.constants = dict(constants)
        self.module_calls = module_calls
        self.dims = dims
        self.constraints = constraints
        self.parameter_names = parameter_names
        self.example_inputs = example_inputs
        self.training = training
        self.dialect = dialect
        self.history = history

    @property
    def graph(self) -> fx.Graph:
        """The graph of `graph_module`."""
        return self.graph_module.graph

    # ------------------------------------------------------------------ running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program through torch. Raises CallError if the arguments are not what it was captured for."""
        from ingot.ir.execution import run

        return run(self, args, kwargs)

    def state_of(self, spec: Input) -> torch.Tensor:
        """The tensor behind a parameter, buffer or constant placeholder."""
        assert spec.target is not None
        found = self.state_dict.get(spec.target)
        return self.constants[spec.target] if found is None else found

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies the values of a state dict in. Raises StateDictError, and changes nothing, if it does not fit."""
        missing = [name for name in self.state_dict if name not in state]
        unexpected = [name for name in state if name not in self.state_dict]
        shapes = [
            f"{name} is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in self.state_dict.items()
            if name in state and state[name].shape != tensor.shape
        ]
        problems = [
            *([f"missing {', '.join(missing)}"] if missing else []),
            *([f"unexpected {', '.join(unexpected)}"] if unexpected else []),
            *shapes,
        ]
        if problems:
            raise StateDictError(
                format_error(
                    f"The state dict does not fit the program: {'; '.join(problems)}.",
                    fix="give the state dict of the model that was captured",
                )
            )
        with torch.no_grad():
            for name, tensor in self.state_dict.items():
                tensor.copy_(state[name])

    # ------------------------------------------------------------------ other forms

    def module(self) -> nn.Module:
        """An nn.Module with this program as its forward, sharing its state. train() and eval() are lossless."""
        from ingot.interop.module import ProgramModule

        return ProgramModule(self)

    def unflatten(self) -> nn.Module:
        """An nn.Module with the hierarchy of the captured model; preserved modules keep their signatures."""
        from ingot.interop.unflatten import unflatten

        return unflatten(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the program to one file, atomically: the same program produces the same bytes."""
        from ingot.serialization.program_file import save

        save(self, path)

    def to_exported(self) -> ExportedProgram:
        """The program as torch.export's ExportedProgram."""
        from ingot.interop.torch_export import to_exported

        return to_exported(self)

    def copy(self) -> Program:
        """A program that may be transformed without changing this one. Tensors are shared."""
        from ingot.ir.clone import copy_graph_module

        return Program(
            graph_module=copy_graph_module(self.graph_module),
            signature=self.signature,
            state_dict=self.state_dict,
            constants=self.constants,
            module_calls=self.module_calls,
            dims=self.dims,
            constraints=self.constraints,
            parameter_names=self.parameter_names,
            example_inputs=self.example_inputs,
            training=self.training,
            dialect=self.dialect,
            history=self.history,
        )

    # ------------------------------------------------------------------ looking

    def verify(self) -> None:
        """Raises VerifyError if the program breaks an invariant; see ingot.ir.verifier for the list."""
        from ingot.ir.verifier import verify

        verify(self)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters by name; a tied parameter is there under its first name."""
        return {str(i.target): self.state_of(i) for i in self.signature.inputs_of_kind(InputKind.PARAMETER)}

    def view(
        self,
        *,
        check: Literal["numerics"] | None = None,
        profile: bool = False,
        numbers: Mapping[str, Any] | None = None,
        target: str = "cpu",
    ) -> ModelView:
        """Every stage from here to native code, as a page: shown by a notebook, opened by `.show()`, written by
        `.save("page.html")`. `check="numerics"` runs and compares every stage, `profile` measures the kernels.
        `numbers` are shown where their names are those of nodes, modules or kernels: `{"latency": {"linear": 1.2}}`."""
        options = {"check": check, "profile": profile, "numbers": numbers, "target": target}
        made: ModelView = call_viewer("entry", "view_program", self, **options)
        return made

    def _repr_html_(self) -> str:
        text: str = call_viewer("summary", "program_html", self)
        return text

    def __str__(self) -> str:
        from ingot.ir.printer import print_program

        return print_program(self)

    def __repr__(self) -> str:
        return f"<ingot.Program: {len(self.graph.nodes)} nodes, {len(self.state_dict)} tensors, {self.dialect.name}>"


def check_program(value: object, entry_point: str) -> None:
    """Raises NotAProgram, which says how to convert the argument of `entry_point` to a Program."""
    from torch.export import ExportedProgram

    if isinstance(value, Program):
        return
    maker = "ingot.capture(model, args) creates one from a module or a function"
    if isinstance(value, ExportedProgram):
        maker = "ingot.from_exported(exported) converts it"
    elif isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        maker = "ingot.from_torchscript(script, args) converts it"
    elif isinstance(getattr(value, "program", None), Program):
        maker = "its attribute `program` is one"
    raise NotAProgram(format_error(f"{entry_point} takes a Program, not {_kind(value)}.", fix=maker))


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
