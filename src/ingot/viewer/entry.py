"""What `ingot view`, `program.view()` and `compiled.view()` do with a view: a page in the browser, or one file."""

from __future__ import annotations

import html
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from ingot.viewer.collection import ViewOptions, collect_compiled_model, collect_program
from ingot.viewer.numbers.matching import add_numbers
from ingot.viewer.numbers.number_files import check_numbers
from ingot.viewer.page import export_page, hold_weights, write_page
from ingot.viewer.server import PageServer, files_of
from ingot.viewer.view_data import Json
from ingot.viewer.weights.tensor_pool import TensorPool

if TYPE_CHECKING:
    from ingot.artifacts.compiled_model import CompiledModel
    from ingot.codegen.native_source import NativeSource
    from ingot.ir.program import Program
    from ingot.lowering.loop_module import Module


class ModelView:
    """A page about a model. In a notebook it shows itself; elsewhere `show()` opens it in the browser.

    `data` is what the page shows, as plain data; `save(path)` writes the page as one HTML file that works offline.
    """

    def __init__(self, data: Json, tensors: TensorPool | None = None) -> None:
        self.data = data
        self._tensors = tensors
        self._server: PageServer | None = None

    def add_numbers(self, numbers: Mapping[str, Any]) -> list[str]:
        """Shows numbers of the caller's: a title, then numbers by the names of nodes, modules or kernels, as in
        `{"latency": {"linear": 1.2}}`, or `{"latency": {"unit": "ms", "values": {"linear": 1.2}}}`. Returns notes about
        the names that the model does not have. Raises ViewError for what is not a finite number."""
        return add_numbers(self.data, check_numbers(numbers))

    def show(self, *, browser: bool = True) -> str:
        """Serves the page from this process until it ends or `close()`, opens it, and returns its address. Raises
        ViewError where this installation of Ingot has no page."""
        if self._server is None:
            self._server = PageServer(files_of(self.data), weights=self._tensors)
            self._server.start()
        if browser:
            self._server.open()
        return self._server.url

    def save(self, path: str | PathLike[str], *, weights: bool = False) -> None:
        """Writes the page as one file; `weights`: with the values of all weights. Raises ViewError where these are more
        than a page holds."""
        write_page(path, self.data, self._tensors if weights else None)

    def close(self) -> None:
        """Stops serving the page."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __repr__(self) -> str:
        return f"<ingot view of {self.data['title']}: {len(self.data['stages'])} stages>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, in which scripts have nothing of the notebook's."""
        page = html.escape(export_page(hold_weights(self.data, None)))
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(self.data["title"])}" '
            'style="width: 100%; height: 720px; border: 1px solid #8888"></iframe>'
        )


def view_program(
    program: Program,
    *,
    check: str | None = None,
    profile: bool = False,
    numbers: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelView:
    """A view of a program and of what `compile` would make of it. `check="numerics"` runs and compares every stage.
    `numbers` are those of `ModelView.add_numbers`."""
    given = check_numbers(numbers) if numbers is not None else []
    wanted = ViewOptions(numerics=_numerics(check), profile=profile, weights=True, **options)
    view = collect_program(program, wanted)
    made = ModelView(view.to_json(), view.tensors)
    add_numbers(made.data, given)
    return made


def view_compiled(
    compiled: CompiledModel,
    module: Module,
    source: NativeSource,
    *,
    profile: bool = False,
    disassembly: bool = False,
    numbers: Mapping[str, Any] | None = None,
) -> ModelView:
    """A view of a compiled model: the program as it was lowered, its loops, its code, and its profile."""
    given = check_numbers(numbers) if numbers is not None else []
    view = collect_compiled_model(compiled, module, source, profile=profile, disassembly=disassembly)
    made = ModelView(view.to_json(), view.tensors)
    add_numbers(made.data, given)
    return made


def _numerics(check: str | None) -> bool:
    if check not in (None, "numerics"):
        raise ValueError(f"check is {check!r}: give None or 'numerics'")
    return check == "numerics"
