"""References on the command line: what `pkg.module:factory` and `path/to/file.py:factory` stand for.

A factory takes no arguments and returns `(model, args, kwargs)` or `(model, args)`.

    FactoryError
    ├── ReferenceSyntaxError      not of the form module:factory
    ├── ReferenceMissing          no such module or file
    ├── ModuleFailed              importing it raised
    ├── FactoryMissing            the module has no such attribute
    ├── FactoryFailed             the factory raised
    ├── FactoryResultError        it returned something else
    ├── UnsuitableFile            a file of another kind: ONNX, weights, Python without the name of a function
    └── AlreadyCompiled           a file that holds native code, where a program is needed
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ingot.cli.inputs.file_kinds import SUFFIXES, Kind, explain, identify
from ingot.errors import IngotError, format_error

_FORM = "factory() must return (model, args, kwargs) or (model, args)"


class FactoryError(IngotError):
    """A reference on the command line does not lead to a model and its arguments."""

    exit_code: ClassVar[int] = 2


class ReferenceSyntaxError(FactoryError):
    """The reference is not of the form module:factory."""


class ReferenceMissing(FactoryError):
    """There is no such module or file."""


class ModuleFailed(FactoryError):
    """Importing the module raised; its exception is the cause."""


class FactoryMissing(FactoryError):
    """The module has no such attribute, or it is not a function without arguments."""


class FactoryFailed(FactoryError):
    """The factory raised; its exception is the cause."""


class FactoryResultError(FactoryError):
    """The factory returned something else than a model and its arguments."""


class UnsuitableFile(FactoryError):
    """A file is neither a factory nor of Ingot; the message says what it is, and what to do."""


class AlreadyCompiled(FactoryError):
    """A file holds native code and no program."""


@dataclass(frozen=True, slots=True)
class Example:
    """A model and the arguments to call it with."""

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def named_file(reference: str) -> Path | None:
    """The file of Ingot that a reference names, None where it names a factory.

    Raises ReferenceMissing, and UnsuitableFile for a file of another kind.
    """
    kind = named_kind(reference)
    path = Path(reference)
    if kind is Kind.INGOT or (reference.endswith(".ingot") and path.is_file() and kind is None):
        return path  # or it says that it is Ingot's, and reading it tells what is wrong with it
    if kind is not None or path.exists():
        raise UnsuitableFile(explain(path, kind))
    return None


def named_kind(reference: str) -> Kind | None:
    """The kind of file that a reference names; None for a factory and for a file of no kind that is known.

    Raises ReferenceMissing for what is named like a file, where there is none.
    """
    path = Path(reference)
    if path.exists():
        return identify(path)
    is_factory = ":" in reference and not reference.endswith(".ingot")
    if not is_factory and path.suffix in SUFFIXES:
        raise ReferenceMissing(format_error(f"There is no file {reference}.", why=f"looked in {Path.cwd()}"))
    return None


def build(reference: str) -> Example:
    """The model and the arguments that the factory behind a reference makes. Raises FactoryError."""
    return _check(call(reference), reference)


def call(reference: str, what: str = "factory") -> Any:
    """Imports the function behind a reference and returns its result. Raises FactoryError."""
    module_name, separator, attribute = reference.rpartition(":")
    if not separator and (kind := named_kind(reference)) is not Kind.INGOT and Path(reference).exists():
        raise UnsuitableFile(explain(Path(reference), kind))
    if not (module_name and separator and attribute):
        raise ReferenceSyntaxError(
            format_error(
                f"{reference!r} does not name a {what}.",
                fix=f"write pkg.module:{what} or path/to/file.py:{what}",
            )
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if module_name.endswith(".py"):
        module = _import_file(module_name)
    else:
        module = _import_module(module_name)
    factory = _find(module, attribute, reference)
    try:
        return factory()
    except Exception as error:
        raise FactoryFailed(
            format_error(
                f"The {what} {reference} raised {_spell(error)}.",
                where=_place(error, getattr(module, "__file__", None)),
                fix="call it in Python to debug it, or use --debug for the whole traceback",
            )
        ) from error


def _import_module(name: str) -> ModuleType:
    if "/" in name or not all(part.isidentifier() for part in name.split(".")):
        raise ReferenceSyntaxError(
            format_error(f"{name!r} is neither a module nor a .py file.", fix="write pkg.module or path/to/file.py")
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _module_failure(name, error) from error
        raise ReferenceMissing(
            format_error(
                f"There is no module {name}.",
                why=f"Python finds no {error.name!r} in {Path.cwd()} or among the installed packages",
                fix="run the command in the folder that holds it, or write path/to/file.py:factory",
            )
        ) from error
    except Exception as error:
        raise _module_failure(name, error) from error


def _import_file(text: str) -> ModuleType:
    """A file as a module under its own name; as with `python file.py`, its folder goes on the path."""
    path = Path(text).resolve()
    if not path.is_file():
        raise ReferenceMissing(format_error(f"There is no file {text}.", why=f"looked for {path}"))
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        name = f"{name}_factory"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _module_failure(text, error, str(path)) from error
    return module


def _module_failure(name: str, error: Exception, file: str | None = None) -> ModuleFailed:
    if file is None:
        spec = importlib.util.find_spec(name.partition(".")[0])
        file = spec.origin if spec is not None else None
    return ModuleFailed(format_error(f"Importing {name} raised {_spell(error)}.", where=_place(error, file)))


def _find(module: ModuleType, attribute: str, reference: str) -> Callable[[], Any]:
    found: Any = module
    for step in attribute.split("."):
        if not hasattr(found, step):
            names = [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]
            close = difflib.get_close_matches(step, names, n=3)
            raise FactoryMissing(
                format_error(
                    f"{reference} does not exist.",
                    where=getattr(module, "__file__", None),
                    why=f"{getattr(found, '__name__', module.__name__)} has no attribute {step!r}",
                    fix=f"did you mean {' or '.join(close)}?" if close else None,
                )
            )
        found = getattr(found, step)
    where = getattr(module, "__file__", None)
    if not callable(found):
        raise FactoryMissing(
            format_error(f"{reference} is not a function but of type {type(found).__name__}.", where=where, fix=_FORM)
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise FactoryMissing(
            format_error(f"{reference} cannot be called without arguments.", where=where, why=str(error), fix=_FORM)
        ) from error
    except ValueError:  # a builtin without a signature: calling it shows what it takes
        pass
    return found  # type: ignore[no-any-return]


def _check(result: Any, reference: str) -> Example:
    def wrong(what: str, fix: str = _FORM) -> FactoryResultError:
        return FactoryResultError(format_error(f"{reference} returned {what}.", fix=fix))

    if not isinstance(result, tuple | list):
        raise wrong(f"a value of type {type(result).__name__}")
    if len(result) not in (2, 3):
        raise wrong(f"{len(result)} values")
    model, args, *rest = result
    kwargs = rest[0] if rest else {}
    if not callable(model):
        raise wrong(f"a model of type {type(model).__name__}, which cannot be called")
    if not isinstance(args, tuple | list):
        if isinstance(args, Mapping):
            raise wrong("a dict as args", "return (model, (), kwargs) for keyword arguments")
        raise wrong(f"args of type {type(args).__name__}", "give the positional arguments as a tuple: (x,)")
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise wrong(
            f"kwargs of type {type(kwargs).__name__}", "give a dict from argument name to value, or leave it out"
        )
    return Example(model, tuple(args), dict(kwargs))


def _spell(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _place(error: BaseException, file: str | None) -> str | None:
    """The innermost line of the user's file in a traceback, and the line that raised where that is another."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return file
    last = frames[-1]
    own = next((frame for frame in reversed(frames) if frame.filename == file), last)
    text = f"{own.filename}:{own.lineno}: {own.line}"
    return text if own is last else f"{text} (raised at {last.filename}:{last.lineno})"
