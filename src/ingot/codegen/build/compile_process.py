"""Runs a compiler and publishes its output, where disks fill up and processes are killed.

`build` turns every way in which a command can end into an answer or an exception, and `publish` makes a file appear at
once and whole. Neither knows what a compiler's flags mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ingot.errors import CompilerFailed, CompilerKilled, CompilerTimeout, StorageError, format_error

_SHOWN_LINES = 30
_SHOWN_WIDTH = 300
_HEARD_BYTES = 1 << 18
# What compilers, assemblers and linkers say when a file could not be written; the second is a signal's name.
_NO_SPACE = re.compile(
    r"No space left on device|File size limit exceeded|Disk quota exceeded|File too large|Read-only file system"
)
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGXFSZ)
# gcc and clang report in these words that a program which they ran was killed.
_KILLED = re.compile(
    r"(?:Killed|Terminated|Segmentation fault|Aborted)\b.*signal terminated program|unable to execute command: \w+"
)
_NO_HEADERS = re.compile(
    r"fatal error: '?(?:stdint|stdlib|string|pthread|stddef|math)\.h'?:? (?:No such file|file not found)"
)


def build(commands: Sequence[Sequence[str]], folder: Path, timeout: float) -> str:
    """Runs commands in parallel in `folder`; returns their output, in their order.

    Raises CompilerFailed, or one of its kinds, for the first that fails; the others are ended then. A command is ended
    together with the programs that it runs. OSError is left to the caller, and where a command says that it could not
    write, StorageError is raised.
    """
    deadline = time.monotonic() + timeout
    running: list[tuple[Sequence[str], subprocess.Popen[bytes]]] = []
    said = []
    try:
        for command in commands:
            running.append((command, _start(command, folder)))
        for command, process in running:
            try:
                text = _listen(process, deadline)
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _timeout(command, timeout) from None
            if code != 0:
                raise _failure(command, code, text, folder)
            said.append(text)
    finally:
        for _, process in running:
            _end(process)
    return "".join(said)


def publish(file: Path, destination: Path, *, is_lasting: bool = True) -> None:
    """Puts a copy of `file` at `destination`, which is whole at every moment, whatever happens; else OSError. With
    `is_lasting` it is on the disk then."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic within one file system only.
    descriptor, name = tempfile.mkstemp(prefix=".ingot-", suffix=".tmp", dir=destination.parent)
    try:
        with open(descriptor, "wb") as copy, file.open("rb") as original:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            os.fchmod(copy.fileno(), file.stat().st_mode & 0o777)
            if is_lasting:
                os.fsync(copy.fileno())
        os.replace(name, destination)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    if is_lasting:
        sync_folder(destination.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` outlive a loss of power, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_BUG = "this is a bug in Ingot: report it with the source"
# The user's part of a source.
_C_KERNEL = re.compile(r"^IG_C_KERNEL\((\w+)\);$", re.MULTILINE)


def keep(error: CompilerFailed, source: str, folder: Path | None) -> CompilerFailed:
    """The same error, with the source and all that the compiler said kept in `folder`, and the place in its message."""
    try:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="ingot-failed-"))
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "model.c"
        kept.write_text(source, encoding="utf-8")
        (folder / "said.txt").write_text(error.output, encoding="utf-8")
        place = f"the source is kept at {kept}"
    except OSError as problem:
        kept, place = None, f"the source could not be kept: {problem.strerror or problem}"
    text, kernels = str(error), ", ".join(_C_KERNEL.findall(source))
    if kernels:
        text = text.replace(_BUG, f"correct what was registered as a C kernel ({kernels}); if that is right, {_BUG}")
    return type(error)(f"{text}\n  source: {place}", command=error.command, output=error.output, kept=kept)


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process may write",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "it is a folder",
}


def storage_error(error: OSError, folder: Path | None) -> StorageError:
    """What an OSError means for someone who wants a library. `folder` is the place, where the error names none."""
    if isinstance(error.filename, str):
        place = error.filename
    else:
        place = "the folder for temporary files" if folder is None else str(folder)
    return _storage(place, _why(error))


def save_error(error: OSError, path: str | os.PathLike[str]) -> StorageError:
    """What an OSError means for someone who saves a compiled model to `path`."""
    why = _why(error)
    fix = "make room, or choose another folder; nothing was written, and a file that was there before is as it was"
    message = format_error("the compiled model could not be saved", where=os.fspath(path), why=why, fix=fix)
    return StorageError(message, place=os.fspath(path), why=why)


def _why(error: OSError) -> str:
    said = error.strerror or str(error)
    known = _REASONS.get(error.errno or 0)
    return f"{known} ({said})" if known else said


def _storage(place: str, why: str) -> StorageError:
    return StorageError(
        format_error(
            "a library could not be compiled, since a file could not be written",
            where=place,
            why=why,
            fix="make room or choose another folder: INGOT_CACHE_DIR for the cache, TMPDIR for temporary files",
        ),
        place=place,
        why=why,
    )


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    # The compiler's own temporary files go where they are removed even after it was killed, and its messages are to be
    # in the language that is looked for here. A session of its own, so that all it runs can be ended at once.
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C", "LANG": "C"}
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        what = format_error(
            "the C compiler cannot be run",
            where=shlex.join(command),
            why=error.strerror or str(error),
            fix="see with `ingot doctor` which compilers work",
        )
        raise CompilerFailed(what, command=command) from error


def _listen(process: subprocess.Popen[bytes], deadline: float) -> str:
    """What a process says until it ends: of garbage without end, the beginning."""
    assert process.stdout is not None
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(min(0.1, max(0.0, deadline - time.monotonic()))):
                heard = os.read(process.stdout.fileno(), 1 << 16)
                if not heard:
                    break
                kept += heard[: _HEARD_BYTES - len(kept)]
            elif process.poll() is not None:  # a program that it left behind holds the pipe open
                break
    return kept.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and everything that it runs. Of one that ended by itself nothing is left to end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _failure(command: Sequence[str], code: int, text: str, folder: Path) -> CompilerFailed | StorageError:
    if code - 128 in _SIGNALS:  # a shell's way to say it, where the compiler is a script
        code = 128 - code
    unwritten = _NO_SPACE.search(text)
    if unwritten or code == -signal.SIGXFSZ:
        return _storage(str(folder), unwritten[0] if unwritten else "File size limit exceeded")
    reason = _trim(text) or "it said nothing"
    if code < 0 or _KILLED.search(text):
        how = f"was killed by {_signal_name(-code)}" if code < 0 else "ran a program that was killed"
        return CompilerKilled(
            format_error(
                f"the C compiler {how}",
                where=shlex.join(command),
                why=reason,
                fix="the machine may be out of memory: free some, or compile fewer models at once; `dmesg` says more",
            ),
            command=command,
            output=text,
        )
    fix = _BUG
    if _NO_HEADERS.search(text):
        fix = (
            "install the C library's headers: the package is called libc6-dev, glibc-devel, musl-dev or build-essential"
        )
    return CompilerFailed(
        format_error(f"the C compiler exits with {code}", where=shlex.join(command), why=reason, fix=fix),
        command=command,
        output=text,
    )


def _timeout(command: Sequence[str], timeout: float) -> CompilerTimeout:
    return CompilerTimeout(
        format_error(
            f"the C compiler did not finish within {timeout:g} s",
            where=shlex.join(command),
            fix="try again when the machine has less to do; if it hangs again, try another compiler, named in CC",
        ),
        command=command,
    )


def _trim(text: str) -> str:
    """What a person reads of it: the first lines that say something, none too long, and nothing that moves a cursor."""
    lines = ["".join(c if c.isprintable() else "�" for c in line[:_SHOWN_WIDTH]) for line in text.split("\n")]
    lines = [line for line in lines if line.strip()]
    more = len(lines) - _SHOWN_LINES
    shown = lines[:_SHOWN_LINES] + ([f"… and {more} lines more"] if more > 0 else [])
    return "\n       ".join(shown)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
