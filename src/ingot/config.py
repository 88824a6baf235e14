"""The one place where environment variables are read.

INGOT_LOGS            what to log to stderr, names of LOGS with commas between them: "passes,guards", "all"; "+passes"
                      logs more of it, "-passes" errors only
INGOT_CACHE_DIR       where compiled models are kept; the user's cache folder where it is not given. It must belong to
                      the user, and no other user may write to it
INGOT_DISABLE_CACHE   anything but "", "0", "false", "no" and "off" keeps Ingot from reading or writing it
INGOT_DISABLE_PASSES  optional passes that compile leaves out, as names with commas between them: "pairs,strips"
INGOT_CHECK           anything but "", "0", "false", "no" and "off" verifies dtypes, extents and accesses of the loop IR
                      after each scheduling pass, beside its structure, which is verified in any case
CC                    the C compiler, with arguments if need be ("ccache gcc"); one that is found where it is not given
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

# The parts that log, each through the logger of its name: ingot.passes, …
LOGS = ("passes", "guards", "lowering", "schedule", "codegen", "cache", "dynamo")

_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR}
_HANDLER = logging.StreamHandler()  # to stderr: stdout belongs to the program
_HANDLER.setFormatter(logging.Formatter("[%(name)s] %(message)s"))

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


def read_completed_line() -> tuple[str, int] | None:
    """The words that bash asks the `ingot` command to complete, and the number of the last one; or None."""
    if os.environ.get("_INGOT_COMPLETE") != "complete_bash":
        return None
    return os.environ.get("COMP_WORDS", ""), int(os.environ.get("COMP_CWORD", "0"))


def replace_completed_line(words: str, last: int) -> None:
    """Changes what `read_completed_line` read, for what completes it."""
    os.environ.update(COMP_WORDS=words, COMP_CWORD=str(last))


def configure_logging(settings: Settings | None = None) -> None:
    """Lets the parts that INGOT_LOGS names write to stderr. Warns of a name that is not one of LOGS."""
    levels: dict[str, int] = {}
    unknown: list[str] = []
    for name in (Settings.from_environment() if settings is None else settings).logs:
        part = name.lstrip("+-")
        level = _LEVELS.get(name[0], logging.INFO)
        if part not in (*LOGS, "all"):
            unknown.append(part)
        levels |= dict.fromkeys(LOGS if part == "all" else [part], level)
    if unknown:
        warnings.warn(
            f"INGOT_LOGS names {', '.join(map(repr, unknown))}, which do not log: known are {', '.join(LOGS)} and all",
            stacklevel=2,
        )
    for part in LOGS:
        if part in levels:
            logger = logging.getLogger(f"ingot.{part}")
            logger.setLevel(levels[part])
            logger.addHandler(_HANDLER)
            logger.propagate = False  # or a handler of the root logger would write the message again
