"""The one place where environment variables are read.

INGOT_LOGS            what to log, names with commas between them: "capture,passes"
INGOT_CACHE_DIR       where compiled models are kept; the user's cache folder where it is not given. It must belong to
                      the user, and nobody else may write to it
INGOT_DISABLE_CACHE   anything but "", "0", "false", "no" and "off" keeps Ingot from reading or writing it
INGOT_DISABLE_PASSES  optional passes that compile leaves out, as names with commas between them: "pairs,strips"
INGOT_CHECK           anything but "", "0", "false", "no" and "off" verifies dtypes, extents and accesses of the loop IR
                      after each scheduling pass, beside its structure, which is verified in any case
CC                    the C compiler, with arguments if need be ("ccache gcc"); one that is found where it is not given
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_OFF = frozenset({"", "0", "false", "no", "off"})


def secret_path() -> Path:
    """Where the secret lies that entries of the cache are authenticated with: outside the cache."""
    return platformdirs.user_state_path("ingot", appauthor=False) / "cache.key"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for."""

    logs: tuple[str, ...]
    cache_dir: Path
    disable_cache: bool
    compiler: str = ""
    disabled_passes: tuple[str, ...] = ()
    check: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings of `environment`, or of this process."""
        given = os.environ if environment is None else environment
        folder = given.get("INGOT_CACHE_DIR", "").strip()
        return cls(
            logs=_names(given.get("INGOT_LOGS", "")),
            cache_dir=Path(folder).expanduser() if folder else platformdirs.user_cache_path("ingot", appauthor=False),
            disable_cache=given.get("INGOT_DISABLE_CACHE", "").strip().lower() not in _OFF,
            compiler=given.get("CC", "").strip(),
            disabled_passes=_names(given.get("INGOT_DISABLE_PASSES", "")),
            check=given.get("INGOT_CHECK", "").strip().lower() not in _OFF,
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
