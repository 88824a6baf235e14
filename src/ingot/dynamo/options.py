"""The options of the backend: torch.compile(model, backend="ingot", options={…})."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from ingot import compiler
from ingot.dynamo.report import Observer
from ingot.errors import UnsupportedPrecision, format_error
from ingot.lowering.loop_module import Precision
from ingot.targets.registry import find_target
from ingot_runtime.model import check_threads


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """`threads`, `precision`, `cache` and `disable_passes` are those of `ingot.compile`; threads are torch's own number
    by default. `fallback_random` leaves operators that draw random numbers to eager, so that they draw eager's numbers.
    `overlap` computes while values of other processes are on their way. `on_graph` is called with a
    GraphReport for each graph."""

    threads: int | None = None
    precision: Precision = "float32"
    cache: bool = True
    disable_passes: tuple[str, ...] = ()
    fallback_random: bool = False
    overlap: bool = True
    on_graph: Observer | None = None

    @property
    def for_compiler(self) -> dict[str, Any]:
        return {
            "threads": self.threads or torch.get_num_threads(),
            "precision": self.precision,
            "cache": self.cache,
            "disable_passes": self.disable_passes,
        }


def read_options(given: Mapping[str, Any] | None, target: str) -> BackendOptions:
    """Raises for a name that is not an option, and for a value that it cannot have: not a reason for eager."""
    chosen = dict(given or {})
    known = [field.name for field in fields(BackendOptions)]
    unknown = ", ".join(key for key in chosen if key not in known)
    if unknown:
        raise ValueError(f"backend ingot has no option {unknown}; it has {', '.join(known)}")
    names = chosen.get("disable_passes", ())
    chosen["disable_passes"] = (names,) if isinstance(names, str) else tuple(names)
    options = BackendOptions(**chosen)
    compiler.resolve_disabled(options.disable_passes)
    check_threads(options.threads)
    precisions = find_target(target).precisions
    if options.precision not in precisions:
        have = " or ".join(map(repr, precisions))
        raise UnsupportedPrecision(
            format_error(f"precision is {options.precision!r}.", fix=f"give {have} for the target {target!r}")
        )
    return options
