"""`ingot doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from ingot import __version__
from ingot.cli import system_info
from ingot.cli.console import AsJson, Debug, Result, command
from ingot.cli.progress import Stages
from ingot.config import Settings


@dataclass(frozen=True, slots=True)
class Package:
    """A package that Ingot uses: from which version on, and what for."""

    name: str
    minimum: str | None
    use: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. A finding that is needed and not `ok` makes the doctor fail."""

    what: str
    found: str
    ok: bool
    needed: bool
    fix: str = ""


PACKAGES = (
    Package("torch", "2.11", "captures and runs programs"),
    Package("numpy", None, "arrays in and out of compiled models"),
    Package("sympy", None, "dynamic dims"),
    Package("filelock", None, "the cache"),
    Package("platformdirs", None, "the cache"),
    Package("transformers", "5", "the models of examples and benchmarks", needed=False),
    Package("onnx", None, "exporting ONNX files", needed=False),
    Package("onnx-ir", "1.1", "exporting ONNX files", needed=False),
    Package("onnxruntime", None, "verifying ONNX files, and a peer in benchmarks", needed=False),
    Package("openvino", None, "a peer in benchmarks", needed=False),
    Package("ziglang", None, "a C compiler where the system has none", needed=False),
    Package("nvidia-cuda-nvrtc", "13", 'compiling for target="cuda"', needed=False),
)

_COMPILER_FIX = (
    "install gcc or clang with the system's package manager (the package is called gcc, clang or build-essential), "
    "or, without administrator rights, `pip install ziglang`"
)


@command
def run(as_json: AsJson = False, debug: Debug = False) -> Result:
    """Show versions, processor, C compiler, cache, GPU and its driver, and what is missing."""
    stages = Stages()
    settings = Settings.from_environment()
    with stages("packages", "looking at packages"):
        packages = [_python(), *(_package(package) for package in PACKAGES)]
    with stages("torch", "importing torch"):
        packages = [_check_import(finding) if finding.what == "torch" else finding for finding in packages]
    with stages("compilers", "trying C compilers"):
        found = system_info.compilers(settings.compiler)
    with stages("cuda", "looking for a GPU"):
        cuda = system_info.cuda_support()
    processor = system_info.processor()
    others = [_compiler(found), _cache(settings), *_cuda(cuda)]
    problems = [finding for finding in (*packages, *others) if finding.needed and not finding.ok]
    data = {
        "ok": not problems,
        "ingot": __version__,
        "python": platform.python_version(),
        "packages": {p.name: system_info.version_of(p.name) for p in PACKAGES},
        "system": platform.platform(),
        "processor": asdict(processor),
        "cuda": asdict(cuda),
        "compilers": [{**asdict(compiler), "works": compiler.works} for compiler in found],
        "cache": {
            "folder": str(settings.cache_dir),
            "writable": system_info.writable(settings.cache_dir) is None,
            "disabled": settings.disable_cache,
        },
        "problems": [{"what": p.what, "found": p.found, "fix": p.fix} for p in problems],
        "optional": [{"what": p.what, "found": p.found, "fix": p.fix} for p in packages if not (p.ok or p.needed)],
    }
    return Result(data, _report(data, packages, others, processor, found, problems), exit_code=1 if problems else 0)


# ---------------------------------------------------------------------- findings


def _python() -> Finding:
    version = platform.python_version()
    return Finding("python", version, sys.version_info >= (3, 11), needed=True, fix="use Python 3.11 or newer")


def _package(package: Package) -> Finding:
    version = system_info.version_of(package.name)
    wanted = package.name if package.minimum is None else f"{package.name}>={package.minimum}"
    fix = f"`pip install '{wanted}'` ({package.use})"
    if version is None:
        return Finding(package.name, "not installed", False, package.needed, fix)
    if package.minimum is not None and _numbers(version) < _numbers(package.minimum):
        found = f"{version}, older than {package.minimum}"
        return Finding(package.name, found, False, package.needed, fix)
    return Finding(package.name, version, True, package.needed)


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers at the beginning of a version: 2.13.0+cpu → (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _check_import(finding: Finding) -> Finding:
    """A package that is installed may still not load: a library is missing, or the build is for another machine."""
    if not finding.ok:
        return finding
    try:
        __import__(finding.what)
    except Exception as error:
        found = f"{finding.found}, but importing it raises {type(error).__name__}: {error}"
        return Finding(finding.what, found, False, True, f"install {finding.what} again, in a fresh environment")
    return finding


def _compiler(found: tuple[system_info.Compiler, ...]) -> Finding:
    working = [compiler.name for compiler in found if compiler.works]
    if working:
        return Finding("C compiler", working[0], True, needed=True)
    tried = "; ".join(f"{compiler.name}: {compiler.problem}" for compiler in found)
    return Finding("C compiler", tried or "none found", False, needed=True, fix=_COMPILER_FIX)


def _cache(settings: Settings) -> Finding:
    from ingot.codegen.build.cache_safety import check_folder
    from ingot.errors import UnsafeCache

    folder = str(settings.cache_dir)
    if settings.disable_cache:
        return Finding("cache", f"{folder} (disabled by INGOT_DISABLE_CACHE)", True, needed=False)
    problem = system_info.writable(settings.cache_dir)
    if problem is None:
        try:
            check_folder(settings.cache_dir, ())
        except UnsafeCache as error:
            fix = f"chmod 700 {folder}, or set INGOT_CACHE_DIR to a folder of your own"
            return Finding("cache", f"{error.place} is not used: {error.why}", False, needed=True, fix=fix)
        return Finding("cache", folder, True, needed=True)
    fix = "set INGOT_CACHE_DIR to a folder that you may write to, or INGOT_DISABLE_CACHE=1 to do without"
    return Finding("cache", f"{folder} cannot be written: {problem}", False, needed=True, fix=fix)


def _cuda(found: system_info.CudaSupport) -> list[Finding]:
    """A GPU is optional: models for one are compiled without it, and others run without it."""
    devices = [Finding("GPU", device, True, needed=False) for device in found.devices]
    return [
        Finding("CUDA driver", found.driver, found.runs, needed=False),
        *devices,
        Finding("NVRTC", found.compiler, found.compiles, needed=False),
    ]


# ---------------------------------------------------------------------- report


def _report(
    data: dict[str, Any],
    packages: list[Finding],
    others: list[Finding],
    processor: system_info.Processor,
    compilers: tuple[system_info.Compiler, ...],
    problems: list[Finding],
) -> tuple[Table | Text, ...]:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("", "ingot", data["ingot"])
    for finding in packages:
        optional = f"; optional: {finding.fix}" if not (finding.ok or finding.needed) else ""
        table.add_row(_mark(finding), finding.what, Text(finding.found + optional))
    table.add_row("", "system", Text(data["system"]))
    usable = f", {processor.usable} usable" if processor.usable != processor.cores else ""
    table.add_row("", "processor", Text(f"{processor.model} ({processor.cores} cores{usable})"))
    table.add_row("", "instructions", " ".join(processor.instruction_sets) or "none of those Ingot looks for")
    for compiler in compilers:
        text = compiler.version if compiler.works else f"{compiler.version}: does not work: {compiler.problem}"
        table.add_row(Text("✓", "green") if compiler.works else Text("✗", "red"), compiler.name, Text(text))
    for finding in others:
        table.add_row(_mark(finding), finding.what, Text(finding.found))
    if not problems:
        return table, Text("Everything that is needed is here.", "green")
    return table, *(Text(f"{p.what}: {p.found}\n  what to do: {p.fix}", "red") for p in problems)


def _mark(finding: Finding) -> Text:
    if finding.ok:
        return Text("✓", "green")
    return Text("✗", "red") if finding.needed else Text("–", "dim")
