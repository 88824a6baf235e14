"""What a page shows, as plain data: pools of files, modules, places, types, nodes and lines, and stages that list them.

docs/internals/viewer.md describes the JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ingot import __version__
from ingot.viewer.numbers.number_files import NumberTable
from ingot.viewer.pools import LinePool, Pool, decode_runs
from ingot.viewer.source_files import SourceFiles

if TYPE_CHECKING:
    from ingot.viewer.weights.tensor_pool import TensorPool

Json: TypeAlias = Any

SCHEMA = 1
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One module call: `call` distinguishes repeated calls of the module at `path`."""

    call: str
    path: str
    type: str


@dataclass(slots=True)
class ViewData:
    """A view that is being collected."""

    title: str
    reference: str
    origin: str
    target: str | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: SourceFiles = field(default_factory=SourceFiles)
    modules: Pool[Json] = field(default_factory=Pool)
    places: Pool[Json] = field(default_factory=Pool)
    types: Pool[Json] = field(default_factory=Pool)
    nodes: Pool[Json] = field(default_factory=Pool)
    lines: LinePool = field(default_factory=LinePool)
    steps: Pool[Json] = field(default_factory=Pool)
    origins: Pool[Json] = field(default_factory=Pool)
    kernels: list[Json] = field(default_factory=list)
    stages: list[Json] = field(default_factory=list)
    inputs: list[Json] = field(default_factory=list)
    outputs: list[Json] = field(default_factory=list)
    dims: list[Json] = field(default_factory=list)
    constraints: list[Json] = field(default_factory=list)
    stats: dict[int, Json] = field(default_factory=dict)
    memory: Json = None
    profile: Json = None
    quantization: Json = None
    numbers: list[Json] = field(default_factory=list)
    # What a GPU counted, to be put among the numbers.
    counters: list[NumberTable] = field(default_factory=list)
    # The values of weights, where a page will ask for them.
    tensors: TensorPool | None = None
    compare: Json = None

    def add_module(self, stack: Iterable[Call]) -> int:
        """The number of the innermost of these calls, outermost first; each is in the pool under the one around it."""
        at = NOWHERE
        for one in stack:
            key = (at, one.call, one.path, one.type)
            at = self.modules.add(key, {"call": one.call, "path": one.path, "type": one.type, "parent": at})
        return at

    def add_place(self, module: int, file: str | None, line: int) -> int:
        """The number of a line of the user's code in a module call; -1 where neither is known."""
        if module == NOWHERE and file is None:
            return NOWHERE
        at = NOWHERE if file is None else self.files.add(file, line)
        key = (module, at, line if file is not None else 0)
        return self.places.add(key, list(key))

    def add_type(
        self, text: str, dtype: str | None = None, dims: Sequence[int | str] | None = None, items: Sequence[int] = ()
    ) -> int:
        shape = None if dims is None else list(dims)
        item = {"text": text, "dtype": dtype, "dims": shape, "items": list(items) or None}
        return self.types.add((text, dtype, None if shape is None else tuple(shape), tuple(items)), item)

    def add_stage(
        self,
        name: str,
        kind: str,
        group: str,
        *,
        seconds: float | None = None,
        changes: int | None = None,
        options: Mapping[str, str] | None = None,
        detail: str = "",
        check: Json = None,
        counts: Mapping[str, int] | None = None,
        delta: Json = None,
        graphs: Sequence[Json] = (),
        head: int = 0,
        steps: Sequence[int] = (),
        texts: Sequence[Json] = (),
        weights: Sequence[int] = (),
    ) -> Json:
        stage = {
            "name": name,
            "kind": kind,
            "group": group,
            "seconds": seconds,
            "changes": changes,
            "options": dict(options or {}),
            "detail": detail,
            "check": check,
            "counts": dict(counts or {}),
            "delta": delta,
            "graphs": list(graphs),
            "head": head,
            "steps": list(steps),
            "texts": list(texts),
            "weights": list(weights),
        }
        self.stages.append(stage)
        return stage

    def steps_of(self, stage: Json) -> list[Json]:
        """The steps of a loop IR stage."""
        return [self.steps.items[number] for number in decode_runs(stage["steps"])]

    def last_stage(self, kind: str) -> Json:
        """The last stage of a kind, None where there is none."""
        return next((stage for stage in reversed(self.stages) if stage["kind"] == kind), None)

    def to_json(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "kind": "view",
            "title": self.title,
            "reference": self.reference,
            "origin": self.origin,
            "version": __version__,
            "target": self.target,
            "facts": [list(fact) for fact in self.facts],
            "notes": self.notes,
            "files": self.files.to_json(),
            "modules": self.modules.items,
            "places": self.places.items,
            "types": self.types.items,
            "nodes": self.nodes.items,
            "lines": self.lines.to_json(),
            "steps": self.steps.items,
            "origins": self.origins.items,
            "kernels": self.kernels,
            "stages": self.stages,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "dims": self.dims,
            "constraints": self.constraints,
            "stats": {str(place): found for place, found in sorted(self.stats.items())},
            "memory": self.memory,
            "profile": self.profile,
            "quantization": self.quantization,
            "numbers": self.numbers,
            "weights": [] if self.tensors is None else self.tensors.describe(),
            "compare": self.compare,
        }
