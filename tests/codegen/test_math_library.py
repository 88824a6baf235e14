"""What mathlib gives out: exactly what was asked for, that compiles, vectorizes, needs no library and has no undefined
behaviour; and that the polynomials are the ones that fit_math fits."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ingot.codegen import math_library
from tests.codegen import fit_math
from tests.codegen.math_harness import (
    FLAGS,
    SANITIZED,
    Build,
    builds,
    command,
    compile_c,
    compilers,
    host_isas,
    isa_flags,
    library_text,
    loops,
)

MAIN = builds()[0]
# Long division, products of 64 bits by 64, loops that end early.
SCALAR = re.compile(r"ig_(lgamma|digamma|fmod|remainder|floor_divide)_f|ig_(sin|cos|tan)_f64|ig_\w+_[iu](8|16|32|64)$")


def code(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def defined(text: str) -> list[str]:
    return re.findall(r"^IG_\w+ \w+ (ig_\w+)\(", text, re.MULTILINE)


class TestSourceOf:
    def test_a_function_and_what_it_needs(self) -> None:
        text = math_library.source_of(["ig_tanh_f32"])
        needed = ["ig_bits_f32", "ig_from_bits_f32", "ig_fma_f32", "ig_pow2_f32", "ig_expm1_f32"]
        assert defined(text) == [*needed, "ig_tanh_f32"]
        assert text.startswith("/* ig_prelude:")

    def test_nothing_for_nothing(self) -> None:
        assert math_library.source_of([]) == ""

    def test_the_order_asked_in_does_not_count(self) -> None:
        names = ["ig_erf_f64", "ig_exp_f32", "ig_floordiv_i64"]
        texts = {math_library.source_of(order) for order in itertools.permutations(names)}
        texts.add(math_library.source_of(names * 2))
        assert len(texts) == 1

    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(KeyError, match="no math function is called 'ig_sin_f16'"):
            math_library.source_of(["ig_exp_f32", "ig_sin_f16"])

    def test_the_prelude_is_not_doubled(self) -> None:
        assert math_library.source_of(["ig_prelude", "ig_exp_f32", "ig_exp_f64"]).count("#include") == 1

    @pytest.mark.parametrize("name", list(math_library.functions()))
    def test_needs_are_what_the_code_uses(self, name: str) -> None:
        function, table = math_library.functions()[name], math_library.functions()
        used = {word for word in re.findall(r"\big_\w+", code(function.text)) if word in table and word != name}
        assert used == set(function.needs)

    def test_every_resource_is_listed(self) -> None:
        folder = files("ingot.codegen") / "c"
        math = {f.name for f in folder.iterdir() if f.name.startswith("math_")}
        assert math | {"random.h"} == set(math_library.RESOURCES)

    def test_every_function_stands_under_its_own_comment(self) -> None:
        for name, function in math_library.functions().items():
            assert name in ("ig_prelude", "ig_bessel_t") or defined(function.text) == [name]

    def test_every_function_is_tested_or_needed(self) -> None:
        table = math_library.functions()
        needed = {need for function in table.values() for need in function.needs}
        drawn = {name for name, function in table.items() if "ig_philox" in function.needs}  # test_random.py has them
        assert set(table) - needed - drawn - {"ig_prelude"} <= set(loops())

    def test_each_compiles_alone(self, tmp_path: Path) -> None:
        # One run of the compiler over many files.
        for name, loop in loops().items():
            (tmp_path / f"{name}.c").write_text(math_library.source_of([name]) + "\n" + loop)
        sources = sorted(map(str, tmp_path.glob("*.c")))
        done = subprocess.run(
            [*command(MAIN.compiler), *FLAGS, "-fsyntax-only", *sources], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]


class TestCompiled:
    @pytest.mark.skipif(Build("gcc", "x86-64-v4") != MAIN, reason="needs gcc and a machine with AVX-512")
    def test_loops_use_the_widest_vectors(self, tmp_path: Path) -> None:
        source, target = tmp_path / "math.c", tmp_path / "math.s"
        source.write_text(library_text())
        lines = [*command("gcc"), *FLAGS, *isa_flags(MAIN), "-S", "-o", str(target), str(source)]
        subprocess.run(lines, check=True)
        assembly = target.read_text()
        scalar = []
        for name in loops():
            found = re.search(rf"^v_{name}:\n(.*?)\.size\s+v_{name},", assembly, re.DOTALL | re.MULTILINE)
            assert found is not None
            # A call in the loop, or no wide register, and the loop is scalar.
            if "%zmm" not in found[1] or re.search(r"\bcall\b", found[1]):
                scalar.append(name)
        assert [name for name in scalar if not SCALAR.match(name)] == []
        assert "ig_sin_f32" not in scalar and "ig_sin_f64" in scalar

    @pytest.mark.skipif("gcc" not in compilers(), reason="the sanitizer that is tried is gcc's")
    def test_no_undefined_behaviour(self, compiled_folder: Path) -> None:
        target = compile_c(
            compiled_folder, library_text(), "gcc", [*isa_flags(Build("gcc", host_isas()[-1])), *SANITIZED]
        )
        program = Path(__file__).parent / "math_every_value.py"
        root = Path(__file__).parents[2]
        path = os.pathsep.join([str(root), str(root / "src")])
        done = subprocess.run(
            [sys.executable, str(program), str(target)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "runtime error" not in done.stderr
        assert done.stdout == f"{len(loops())} functions\n"


class TestFits:
    @pytest.mark.parametrize("name", math_library.RESOURCES)
    def test_polynomials_are_fitted_here(self, name: str) -> None:
        text = (fit_math.HEADERS / name).read_text(encoding="utf-8")
        assert fit_math.rewrite(text) == text

    def test_every_fit_is_used(self) -> None:
        text = "".join((fit_math.HEADERS / name).read_text(encoding="utf-8") for name in math_library.RESOURCES)
        assert {found[4] for found in fit_math.BLOCK.finditer(text)} == set(fit_math.FITS)
