"""Sets of C headers: each is found in its package, and no name is defined twice in one file."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from ingot.codegen import headers, math_library
from ingot.codegen.headers import PORTABLE, HeaderSet

AGAIN = "IG_FN float ig_round_f32(float x) { return x; }\n"


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HeaderSet, Path]:
    """The portable headers and those of another package, whose folder is empty."""
    package = f"package_of_{request.node.name}"
    (tmp_path / package / "c").mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return HeaderSet(("ingot.codegen", package), apart=("apart.h",)), tmp_path / package / "c"


def test_a_set_holds_the_headers_of_all_its_packages(other: tuple[HeaderSet, Path]) -> None:
    both, folder = other
    (folder / "own.h").write_text("static int ig_own(int x)\n{\n    return x;\n}\n")
    assert "ig_own" in both.read("own.h")
    assert both.read("sort.h") == PORTABLE.read("sort.h")
    assert both.definitions().items() >= {"ig_own": "own.h", "ig_round_f32": "math_base.h"}.items()
    with pytest.raises(KeyError):
        PORTABLE.read("own.h")


def test_a_name_of_another_package_is_not_defined_again(other: tuple[HeaderSet, Path]) -> None:
    both, folder = other
    (folder / "own.h").write_text(AGAIN)
    with pytest.raises(ValueError, match=r"ig_round_f32 is defined in math_base\.h and in own\.h"):
        both.read("sort.h")


def test_a_header_apart_may_define_it_again(other: tuple[HeaderSet, Path]) -> None:
    both, folder = other
    (folder / "apart.h").write_text(AGAIN)
    assert both.read("apart.h") == AGAIN


def test_two_packages_have_no_header_of_one_name(other: tuple[HeaderSet, Path]) -> None:
    both, folder = other
    (folder / "sort.h").write_text("")
    with pytest.raises(ValueError, match=r"two packages have a C header called sort\.h"):
        both.read("sort.h")


@pytest.mark.parametrize(
    "second",
    [
        "IG_FN float ig_round_f32(float x) { return x; }",
        "static inline __attribute__((always_inline)) int ig_round_f32(int a,\n    int b)\n{\n}",
        "#define ig_round_f32(x) (x)",
        "typedef float ig_round_f32 __attribute__((vector_size(64)));",
        "typedef struct {\n    int a;\n} ig_round_f32;",
        "enum { IG_A = 1, ig_round_f32 };",
    ],
)
def test_a_second_definition_is_an_error(second: str) -> None:
    found = dict(PORTABLE.definitions())
    with pytest.raises(ValueError, match=r"ig_round_f32 is defined in math_base\.h and in new\.h"):
        headers.define(found, "new.h", second)


# Headers beside the math library's, and macros written out of them.
ROUTINES = {
    "prelude.h": "",
    "index_arithmetic.h": "",
    "checked_sizes.h": "",
    "sort.h": "IG_SORT(f32, float)\nIG_MODE(f32, float)\nIG_SEARCH(f32, float)",
    "scan.h": "IG_SCAN(sum, +, 0, f32, float, double)\nIG_SCAN_PLACES(max, >=, f32, float)\n"
    "IG_SCAN_LOGSUMEXP(f32, float)",
    "linalg.h": "IG_CHOLESKY(f64, double)\nIG_LU(f64, double)\nIG_TRIANGULAR(f64, double)",
    "qr_svd.h": "",
    "abi.h": "",
    "argument_checks.h": "",
}


def test_portable_headers_are_cpp_too(tmp_path: Path) -> None:
    """Compilers for devices read C++."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = resources.files("ingot.codegen") / "c"
    assert {file.name for file in folder.iterdir()} == {*ROUTINES, *math_library.RESOURCES}
    texts = {name: f"{PORTABLE.read(name)}\n{macros}\n" for name, macros in ROUTINES.items()}
    includes = "".join(f"#include <{name}>\n" for name in ("cstdint", "cstdio", "cstring"))
    includes += "#define IG_HOST_ONLY 1\n"
    first = "".join(texts.pop(name) for name in list(ROUTINES)[:3])
    source = tmp_path / "portable.cpp"
    source.write_text(
        "\n".join([includes, first, math_library.source_of(math_library.functions()), *texts.values()]),
        encoding="utf-8",
    )
    done = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(file.name for file in (resources.files("ingot.codegen") / "c").iterdir()))
def test_portable_headers_name_no_machine(name: str) -> None:
    text = PORTABLE.read(name)
    assert (
        re.findall(r"vector_size|pthread\w*|_Atomic|stdatomic|__asm__|__builtin_ia32\w*|\w*intrin\.h|arm_neon", text)
        == []
    )
