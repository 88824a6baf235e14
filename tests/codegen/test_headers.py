"""Sets of C headers: each is found in its package, and no name is defined twice in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.codegen import headers
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
