"""C compilers: finding one, and compiling a C file to a shared library with it.

    toolchain = find(settings)                                  # $CC, gcc, clang, cc, or the ziglang package
    toolchain.compile_library(source, isa.host(), Path("model.so"))

The same source, compiler and instruction set give the same bytes in every folder. A library appears at its destination
whole or not at all. Whatever goes wrong is one of ingot.errors' CompileErrors.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot.codegen.build.compile_process import build, keep, publish, storage_error
from ingot.codegen.build.isa import Isa
from ingot.config import Settings
from ingot.errors import CompilerFailed, NoCompiler, UnsupportedMachine, format_error
from ingot_runtime.cpu_features import architecture

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    # An operation of a body has the same bits in every kernel that computes it: products and sums are fused where the
    # source says so, never where the compiler happens to see both.
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-pthread",
    "-g0",
)
# Of a file in several parts, part 0 only launches what the others compute: to optimize it takes time and gives none.
RUN_FLAGS = ("-O1",)
# For extra_flags: what generated code is meant to pass without a word.
WARNINGS = ("-Wall", "-Wextra")
SECONDS = 600.0

_INSTALL = (
    "install gcc or clang with the system's package manager (the package is called gcc, clang or build-essential), "
    "or, without administrator rights, `pip install ziglang`; or name a compiler in the environment variable CC"
)
_ASKING_SECONDS = 60
# What a file of machine code begins with: ELF, and the three forms of Mach-O.
_MAGICS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler that answers when it is asked who it is.

    `identity` covers its version, target and arguments but not its path: two with the same identity make the
    same library of the same source. `target` is the triple it makes code for.
    """

    name: str
    command: tuple[str, ...]
    identity: str
    target: str
    is_zig: bool = False

    def flags(self, isa: Isa, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """Everything that decides what is made of a source, but not the names of files."""
        if self.is_zig:
            # Of zig's two ways to name a processor only this one knows all of them. Without it, zig takes the host's.
            chosen = [f"-mcpu={isa.zig_cpu}", *(flag for flag in isa.flags if flag.startswith("-mprefer-"))]
            if isa.architecture not in (None, self._architecture) or isa.system != self._system:
                system = "macos" if isa.system == "macos" else "linux-gnu"
                chosen = ["-target", f"{isa.architecture or self._architecture}-{system}", *chosen]
        else:
            chosen = list(isa.flags)
        return (*FLAGS, *chosen, *self._linking(isa, extra), *extra)

    def _linking(self, isa: Isa, extra: Sequence[str]) -> Iterator[str]:
        if isa.system == "macos":  # whose linker has neither a build ID to leave out, nor undefined functions unasked
            yield "-Wl,-install_name,model.dylib"
            return
        if "linux" not in self.target and not self.is_zig:
            return
        yield "-Wl,--build-id=none"
        # A function that neither libc nor the source has is an error here and not when the library is loaded. The
        # sanitizers' own are found in the program that loads it.
        if not any(flag.startswith("-fsanitize") for flag in extra):
            yield "-Wl,-z,defs"

    @property
    def _system(self) -> str:
        return "macos" if any(name in self.target for name in ("darwin", "macos")) else "linux"

    @property
    def _architecture(self) -> str:
        return architecture(self.target.partition("-")[0])

    def compile_library(
        self,
        source: str,
        isa: Isa,
        destination: Path,
        *,
        extra_flags: Sequence[str] = (),
        parts: int = 1,
        timeout: float = SECONDS,
        work: Path | None = None,
        failed: Path | None = None,
        is_lasting: bool = True,
    ) -> str:
        """Makes the shared library of `source` at `destination`; gives what the compiler said: warnings, or nothing.

        With `parts` above 1 the source is compiled that often at the same time, with IG_PARTS defined as that number
        and IG_PART as 0, 1, …, and the objects are linked; with 1, neither is defined. Part 0 is compiled with
        RUN_FLAGS, unless `extra_flags` say otherwise. Temporary files lie in a new
        folder in `work`, or in the system's folder for them, and are gone afterwards. Of a source that the compiler
        fails on, a copy is kept in `failed`, or in a new temporary folder; the exception names it. `timeout` holds for
        compiling and linking alike. A library that is not `is_lasting` need not outlive a loss of power.
        """
        self.check_target(isa)
        flags, run_flags = self.flags(isa, extra_flags), self.flags(isa, (*RUN_FLAGS, *extra_flags))
        try:
            with tempfile.TemporaryDirectory(prefix="ingot-cc-", dir=work, ignore_cleanup_errors=True) as name:
                folder = Path(name)
                (folder / "model.c").write_text(source, encoding="utf-8")
                try:
                    said = self._build(folder, flags, run_flags, parts, timeout)
                except CompilerFailed as error:
                    raise keep(error, source, failed) from None
                publish(folder / "model.so", destination, is_lasting=is_lasting)
        except OSError as error:
            raise storage_error(error, work) from error
        return said

    def _build(self, folder: Path, flags: Sequence[str], run_flags: Sequence[str], parts: int, timeout: float) -> str:
        where = f"-ffile-prefix-map={folder}=."
        command = (*self.command, *flags, where)
        if parts == 1:
            said = build([(*command, "-shared", "-o", "model.so", "model.c")], folder, timeout)
        else:
            objects = [f"part{i}.o" for i in range(parts)]
            commands = []
            for number, part in enumerate(objects):
                # clang warns of what is for the linker
                alone = [word for word in (flags if number else run_flags) if not word.startswith("-Wl,")]
                which = (f"-DIG_PARTS={parts}", f"-DIG_PART={number}")
                commands.append((*self.command, *alone, where, *which, "-c", "-o", part, "model.c"))
            said = build(commands, folder, timeout)
            said += build([(*command, "-shared", "-o", "model.so", *objects)], folder, timeout)
        self._check_library(folder / "model.so", said)
        return said

    def supports(self, isa: Isa) -> bool:
        """Whether it makes code for the architecture of `isa`."""
        return self.is_zig or (isa.architecture in (None, self._architecture) and isa.system == self._system)

    def check_target(self, isa: Isa) -> None:
        """Raises UnsupportedMachine where it does not make code for `isa`."""
        if self.supports(isa):
            return
        raise UnsupportedMachine(
            format_error(
                f"{self.name} does not support the target ISA {isa}",
                why=f"its target is {self.target}, and {isa} is for {isa.architecture or isa.name} and {isa.system}",
                fix="`pip install ingot[cross]` brings ziglang, which makes code for all of them; or name a cross "
                "compiler in the environment variable CC",
            )
        )

    def _check_library(self, library: Path, said: str) -> None:
        """Checks the output: a compiler that reports success may still have written nothing that can be loaded."""
        try:
            with library.open("rb") as file:
                begins = file.read(4)
        except FileNotFoundError:
            begins = None
        if begins in _MAGICS:
            return
        what = "wrote no library" if begins is None else "wrote something that is not a shared library"
        raise CompilerFailed(
            format_error(
                f"the C compiler {self.name} ended without an error, but {what}",
                where=shlex.join(self.command),
                why=said.strip()[:400] or "it said nothing",
                fix=f"see with `ingot doctor` which compilers work; {_INSTALL}",
            ),
            command=self.command,
            output=said,
        )


def find(settings: Settings | None = None) -> Toolchain:
    """The C compiler to use: the one that CC names, and only that, else the first of `candidates` that works."""
    named = (Settings.from_environment() if settings is None else settings).compiler
    problems = []
    for name, command in candidates(named):
        try:
            return _ask(name, command)
        except NoCompiler as error:
            problems.append(str(error))
    raise NoCompiler(
        format_error(
            f"the C compiler that CC names, {named!r}, does not work" if named else "no C compiler was found",
            why="; ".join(problems) or "there is no gcc, clang or cc on the PATH, and no package ziglang",
            fix=f"correct CC, or unset it; {_INSTALL}" if named else _INSTALL,
        )
    )


def find_for(isa: Isa, settings: Settings | None = None) -> Toolchain:
    """The compiler for `isa`: that of `find`. If that one compiles for another architecture only, and CC does not name
    it, the gcc that is a cross compiler, or the ziglang package.

    Raises UnsupportedMachine where there is none.
    """
    settings = Settings.from_environment() if settings is None else settings
    found = find(settings)
    if not settings.compiler and not found.supports(isa):
        for name, command in _cross_candidates(isa):
            try:
                return _ask(name, command)
            except NoCompiler:
                continue
    found.check_target(isa)
    return found


def _cross_candidates(isa: Isa) -> Iterator[tuple[str, tuple[str, ...]]]:
    name = f"{isa.architecture}-linux-gnu-gcc"
    if isa.system == "linux" and sys.platform == "linux" and (path := shutil.which(name)) is not None:
        yield name, (path,)
    yield from _ziglang()


def candidates(named: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and commands of the compilers there may be, the preferred first: `named` alone, if it is given."""
    if named:
        try:
            words = shlex.split(named)
        except ValueError:  # a quote without its other half
            words = [named]
        yield Path(words[0]).name, (shutil.which(words[0]) or words[0], *words[1:])
        return
    for name in ("gcc", "clang", "cc"):
        path = shutil.which(name)
        if path is not None:
            yield name, (path,)
    yield from _ziglang()


def _ziglang() -> Iterator[tuple[str, tuple[str, ...]]]:
    if importlib.util.find_spec("ziglang") is not None:
        yield "ziglang", (sys.executable, "-m", "ziglang", "cc")


@functools.cache
def _ask(name: str, command: tuple[str, ...]) -> Toolchain:
    """Asks a compiler who it is; raises NoCompiler, with a short reason, where it does not answer."""
    version = _answer(name, command, "--version")
    first = version.splitlines()[0].strip()[:200]
    # gcc begins with the name that it was called by.
    first = first.removeprefix(f"{Path(command[0]).name} ")
    target = _answer(name, command, "-dumpmachine").splitlines()[0].strip()[:100]
    if not _is_zig(command):
        return Toolchain(name, command, "; ".join((first, target, *command[1:])), target)
    # zig answers -dumpmachine with a default of clang's and not with what it makes code for.
    named = [line.partition(":")[2].strip() for line in version.splitlines() if line.startswith("Target:")]
    target = named[0] if named else target
    zig = _answer(name, command[:-1], "version")
    return Toolchain(name, command, f"zig {zig}; {first}; {target}", target, is_zig=True)


def _is_zig(command: tuple[str, ...]) -> bool:
    """Whether it is `zig cc`, or `python -m ziglang cc`."""
    return len(command) > 1 and command[-1] == "cc" and Path(command[-2]).name in ("zig", "ziglang")


def _answer(name: str, command: tuple[str, ...], question: str) -> str:
    try:
        asked = subprocess.run(
            (*command, question),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKING_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise NoCompiler(f"{name} does not answer {question} in {_ASKING_SECONDS} s") from None
    except OSError as error:
        raise NoCompiler(f"{name} cannot be run: {error.strerror or error}") from None
    said = asked.stdout.decode(errors="replace").strip()
    if asked.returncode != 0 or not said:
        complaint = asked.stderr.decode(errors="replace").strip().splitlines()
        reason = f": {complaint[0][:200]}" if complaint else ""
        raise NoCompiler(f"{name} {question} exits with {asked.returncode} and says nothing useful{reason}")
    return said
