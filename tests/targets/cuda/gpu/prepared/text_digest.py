"""A digest of all that runs on a GPU for a program: the text of its kernels and of its host part, how they are
compiled, its weights as they are packed, and the inputs of its calls.

It does not depend on comments, on the places in source files that errors name, nor on the programs that were built
together with this one: names of kernels are those from before `batched_build` changes them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen.module_emitter import CudaSource
from ingot.targets.cuda.target import CudaTarget
from tests.targets.cuda.gpu.batched_build import ARCHITECTURE
from tests.targets.cuda.gpu.saved_calls import name_array
from tests.targets.cuda.gpu.sweeps import ProgramJudge

LENGTH = 12
_TOKENS = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])')|/\*.*?\*/|//[^\n]*""", re.DOTALL)
_SITES = re.compile(r"(ig_sites\[\] = \{)[^;]*")


def strip_comments(text: str) -> str:
    """A text of C or CUDA C++ without comments, and with single spaces between its lines."""
    return "\n".join(" ".join(line.split()) for line in _TOKENS.sub(_keep, text).splitlines() if line.strip())


def _keep(match: re.Match[str]) -> str:
    return match[1] or " "


def digest_text(source: CudaSource, weights: NDArray[Any], inputs: str, target: CudaTarget) -> str:
    """Of a program's texts, its packed weights and the digest of its calls' inputs."""
    compiler = (ARCHITECTURE, str(target.toolkit_version()), *nvrtc.FLAGS)
    host = _SITES.sub(r"\1", strip_comments(source.host))
    parts = [*(part.encode() for part in (*compiler, strip_comments(source.device), host, inputs)), weights.tobytes()]
    return _digest(parts)


def digest_inputs(judge: ProgramJudge) -> str:
    """Of the arguments of every call: their dtypes, shapes and bits."""
    parts = []
    for number in range(judge.count()):
        parts.append(str(number).encode())
        for place, tensor in enumerate(judge.arguments(number)):
            name, array = name_array(str(place), tensor)
            parts += [f"{name} {array.dtype} {array.shape}".encode(), array.tobytes()]
    return _digest(parts)


def digest_bytes(data: bytes) -> str:
    return _digest([data])


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()[:LENGTH]
