"""What `ingot view`, `program.view()` and `compiled.view()` do with a view: a page in the browser, or one file."""

from __future__ import annotations

import html
from os import PathLike
from typing import TYPE_CHECKING, Any

from ingot.viewer.collection import ViewOptions, collect_compiled_model, collect_program
from ingot.viewer.page import export_page, write_page
from ingot.viewer.server import PageServer, files_of
from ingot.viewer.view_data import Json

if TYPE_CHECKING:
    from ingot.artifacts.compiled_model import CompiledModel
    from ingot.codegen.native_source import NativeSource
    from ingot.ir.program import Program
    from ingot.lowering.loop_module import Module


class ModelView:
    """A page about a model. In a notebook it shows itself; elsewhere `show()` opens it in the browser.

    `data` is what the page shows, as plain data; `save(path)` writes the page as one HTML file that works offline.
    """

    def __init__(self, data: Json) -> None:
        self.data = data
        self._server: PageServer | None = None

    def show(self, *, browser: bool = True) -> str:
        """Serves the page from this process until it ends or `close()`, opens it, and returns its address. Raises
        ViewError where this installation of Ingot has no page."""
        if self._server is None:
            self._server = PageServer(files_of(self.data))
            self._server.start()
        if browser:
            self._server.open()
        return self._server.url

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the page as one file."""
        write_page(path, self.data)

    def close(self) -> None:
        """Stops serving the page."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __repr__(self) -> str:
        return f"<ingot view of {self.data['title']}: {len(self.data['stages'])} stages>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, in which scripts have nothing of the notebook's."""
        page = html.escape(export_page(self.data))
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{html.escape(self.data["title"])}" '
            'style="width: 100%; height: 720px; border: 1px solid #8888"></iframe>'
        )


def view_program(program: Program, *, check: str | None = None, profile: bool = False, **options: Any) -> ModelView:
    """A view of a program and of what `compile` would make of it. `check="numerics"` runs and compares every stage."""
    return ModelView(
        collect_program(program, ViewOptions(numerics=_numerics(check), profile=profile, **options)).to_json()
    )


def view_compiled(compiled: CompiledModel, module: Module, source: NativeSource, *, profile: bool = False) -> ModelView:
    """A view of a compiled model: the program as it was lowered, its loops, its code, and its profile."""
    return ModelView(collect_compiled_model(compiled, module, source, profile=profile).to_json())


def _numerics(check: str | None) -> bool:
    if check not in (None, "numerics"):
        raise ValueError(f"check is {check!r}: give None or 'numerics'")
    return check == "numerics"
