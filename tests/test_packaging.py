"""Both distributions are built, sdist first and the wheel from the sdist, and hold what they should."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

import pytest

import ingot

ROOT = Path(__file__).parents[1]
MANIFESTS = {"ingot": ROOT / "pyproject.toml", "ingot_runtime": ROOT / "runtime" / "pyproject.toml"}
# What pip does, without an isolated environment: the backend that the manifest names, in the project's folder.
BUILD = """
import importlib, sys, tomllib
with open("pyproject.toml", "rb") as file:
    system = tomllib.load(file)["build-system"]
sys.path[:0] = system.get("backend-path", [])
print(getattr(importlib.import_module(system["build-backend"]), sys.argv[1])(sys.argv[2]))
"""
# What a distribution is called where its module has another name.
MODULES = {"onnx-ir": "onnx_ir", "ingot-runtime": "ingot_runtime"}


def tracked() -> list[str]:
    """Files of the repository, those of this change included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    return sorted(name for name in listed if (ROOT / name).exists())


def build(kind: str, project: Path, output: Path) -> Path:
    """Builds with the setuptools that is installed: no isolated environment, no network."""
    output.mkdir(exist_ok=True)
    done = run_backend(kind, project, output)
    assert done.returncode == 0, done.stdout + done.stderr
    return output / done.stdout.splitlines()[-1]


def run_backend(kind: str, project: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{kind}", str(output)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The sdist and the wheel of each distribution."""
    folder = tmp_path_factory.mktemp("packaging")
    for name in tracked():
        target = folder / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    made = {}
    for name, project in (("ingot_runtime", folder / "tree" / "runtime"), ("ingot", folder / "tree")):
        sdist = build("sdist", project, folder / "dist")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        unpacked = folder / "unpacked" / sdist.name.removesuffix(".tar.gz")
        made[name] = {"sdist": sdist, "wheel": build("wheel", unpacked, folder / "dist")}
    return made


def in_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])


def below(folder: str) -> set[str]:
    return {name.removeprefix("src/") for name in tracked() if name.startswith(f"src/{folder}/")}


@pytest.mark.parametrize("name", MANIFESTS)
def test_wheel_is_the_package(built: dict[str, dict[str, Path]], name: str) -> None:
    assert in_wheel(built[name]["wheel"]) == below(name)


def test_sdist_of_ingot_is_complete(built: dict[str, dict[str, Path]]) -> None:
    assert set(tracked()) <= in_sdist(built["ingot"]["sdist"])


def test_sdist_of_the_runtime_is_complete(built: dict[str, dict[str, Path]]) -> None:
    held = in_sdist(built["ingot_runtime"]["sdist"])
    own = {"LICENSE", "README.md", "build_backend.py", "pyproject.toml"}
    assert {f"src/{name}" for name in below("ingot_runtime")} | own <= held
    assert not any(name.startswith("src/ingot/") for name in held)


@pytest.mark.parametrize("damage", [None, "text", "dangling"])
def test_runtime_builds_inside_the_sdist_of_ingot(
    built: dict[str, dict[str, Path]], tmp_path: Path, damage: str | None
) -> None:
    """What `pip install ./runtime .` does there. A link that became a text file, or points nowhere, is replaced."""
    with tarfile.open(built["ingot"]["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    link = unpacked / "runtime" / "src"
    if damage == "text":
        link.write_text("../src", encoding="utf-8")
    if damage == "dangling":
        link.symlink_to("../nowhere")
    wheel = build("wheel", unpacked / "runtime", tmp_path / "dist")
    assert in_wheel(wheel) == below("ingot_runtime")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_runtime_away_from_its_sources_is_a_clear_error(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "runtime", tmp_path / "runtime", ignore=shutil.ignore_patterns("src", "LICENSE"))
    done = run_backend("wheel", project, tmp_path)
    assert done.returncode != 0 and "is built inside a checkout of Ingot" in done.stderr


def test_requirements(built: dict[str, dict[str, Path]]) -> None:
    assert metadata(built["ingot_runtime"]["wheel"]) == ["numpy", 'cryptography>=42; extra == "signing"']
    required = metadata(built["ingot"]["wheel"])
    assert f"ingot-runtime=={ingot.__version__}" in required
    always = {re.split(r"[ <>=;\[]", line)[0] for line in required if "extra ==" not in line}
    assert not always & {"onnx", "onnx-ir", "onnxruntime", "ml_dtypes", "transformers", "cryptography"}
    for package in ("onnx", "onnx-ir", "onnxruntime", "ml_dtypes"):
        assert any(re.match(rf"{package}\b.*extra == \"onnx\"", line) for line in required), package


def test_runtime_wheel_runs_by_itself(built: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    with zipfile.ZipFile(built["ingot_runtime"]["wheel"]) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules.update(ingot=None, torch=None);"
        "import ingot_runtime; print(ingot_runtime.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


# ---------------------------------------------------------------------- the manifests


def project(name: str) -> dict[str, object]:
    found = tomllib.loads(MANIFESTS[name].read_text(encoding="utf-8"))["project"]
    assert isinstance(found, dict)
    return found


def requirements(name: str) -> list[str]:
    given = project(name)
    extras = given.get("optional-dependencies", {})
    assert isinstance(given["dependencies"], list) and isinstance(extras, dict)
    return [*given["dependencies"], *(line for lines in extras.values() for line in lines)]


def imported(folder: Path) -> set[str]:
    """The top-level modules that a package imports, other than its own and the standard library's."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {folder.name, "functorch"}  # part of torch


def modules(lines: Iterable[str]) -> set[str]:
    names = {re.split(r"[ <>=;\[]", line)[0] for line in lines}
    return {MODULES.get(name, name) for name in names}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_import_is_declared_and_every_dependency_imported(name: str) -> None:
    wanted = imported(ROOT / "src" / name)
    # Of examples and benchmarks; a library, not a module; a program.
    loaded = {"transformers", "nvidia-cuda-nvrtc", "ziglang"}
    declared = modules(requirements(name)) - loaded
    assert wanted <= declared
    assert declared <= wanted


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_dependency_has_a_reason(name: str) -> None:
    lines = MANIFESTS[name].read_text(encoding="utf-8").splitlines()
    for requirement in requirements(name):
        (index,) = (i for i, line in enumerate(lines) if line.strip().startswith(f'"{requirement}"'))
        assert "#" in lines[index] or lines[index - 1].strip().startswith("#"), requirement


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_every_requirement_has_a_reason(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w\[\].-]+==[\w.]+  # \S.*", line), line


def test_pins_cover_the_dependencies() -> None:
    texts = [(ROOT / f"requirements-{name}.txt").read_text(encoding="utf-8") for name in ("dev", "cross")]
    pinned = re.findall(r"^([\w.-]+)==", "\n".join(texts), re.MULTILINE)
    assert modules(requirements("ingot") + requirements("ingot_runtime")) - {"ingot_runtime"} <= modules(pinned)


def test_versions_agree() -> None:
    assert project("ingot")["version"] == project("ingot_runtime")["version"] == ingot.__version__


def test_urls_agree() -> None:
    assert project("ingot")["urls"] == project("ingot_runtime")["urls"]


# ---------------------------------------------------------------------- optional packages


def test_onnx_export_names_the_extra(tmp_path: Path) -> None:
    code = """
import sys
import torch, ingot
program = ingot.capture(torch.nn.ReLU(), (torch.ones(2),))
for package in ("onnx", "onnx_ir", "ml_dtypes", "onnxruntime"):
    sys.modules[package] = None
    try:
        ingot.export_onnx(program, sys.argv[1])
    except ingot.errors.OnnxUnavailable as error:
        print(package, str(error).replace(chr(10), " "))
    del sys.modules[package]
    for name in [name for name in sys.modules if name.startswith("ingot.onnx")]:
        del sys.modules[name]
    del ingot.export_onnx
"""
    command = [sys.executable, "-c", code, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, package in zip(done.stdout.splitlines(), ("onnx", "onnx_ir", "ml_dtypes", "onnxruntime"), strict=True):
        assert line.startswith(package) and "pip install 'ingot[onnx]'" in line
    assert not list(tmp_path.iterdir())


def test_other_import_errors_are_not_hidden() -> None:
    code = """
import sys
sys.modules["sympy.core.relational"] = None
try:
    import ingot.onnx.api
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "sympy.core.relational", done.stderr


def test_shell_completion() -> None:
    runner = importlib.import_module("typer.testing").CliRunner()
    app = importlib.import_module("ingot.cli").app
    environment = {"_INGOT_COMPLETE": "complete_bash", "COMP_WORDS": "ingot com", "COMP_CWORD": "1"}
    assert "compile" in runner.invoke(app, prog_name="ingot", env=environment).output
