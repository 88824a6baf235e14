"""Signed files: the signature covers every byte that matters, and is verified before anything is run."""

import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingot_runtime
from ingot_runtime import (
    DamagedFile,
    FileError,
    InvalidKey,
    SigningUnavailable,
    UnsafeFile,
    UntrustedFile,
    check_container,
    describe,
    load,
    open_container,
    sign_file,
    write_container,
    write_keys,
)
from ingot_runtime.__main__ import main
from ingot_runtime.container import SIGNED_SCHEMA, archive, canonical_json
from tests.runtime.native_model import COMPILER, W, needs_compiler, write_affine

pytest.importorskip("cryptography")
pytestmark = needs_compiler


class Keys:
    """Two key pairs as files, and one as an object."""

    def __init__(self, folder: Path) -> None:
        self.private, self.public = folder / "mine.pem", folder / "mine.pub.pem"
        self.other_private, self.other = folder / "other.pem", folder / "other.pub.pem"
        write_keys(self.private, self.public)
        write_keys(self.other_private, self.other)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_affine(tmp_path_factory.mktemp("bare") / "m.ingot")


@pytest.fixture(scope="module")
def signed(bare: Path, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signed") / "m.ingot"
    sign_file(bare, keys.private, path)
    return path


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """A library whose constructor leaves a marker, and the marker."""
    folder = tmp_path_factory.mktemp("trap")
    functions = "".join(
        f"void {name}(void) {{}}\n"
        for name in ("ingot_describe", "ingot_open", "ingot_sizes", "ingot_run", "ingot_seed", "ingot_close")
    )
    marker = folder / "executed"
    (folder / "trap.c").write_text(
        f"#include <stdio.h>\n{functions}__attribute__((constructor)) static void trap(void) "
        f'{{ fclose(fopen("{marker}", "w")); }}\n'
    )
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "trap.so", folder / "trap.c"], check=True)
    return (folder / "trap.so").read_bytes(), marker


def repack(path: Path, target: Path, edit: Callable[[dict[str, bytes]], None], **write: object) -> Path:
    """A file with the same manifest fields and other members, hashes in order."""
    with open_container(path) as opened:
        members = {name: bytes(opened.read(name)) for name in opened.names}
        fields = {k: v for k, v in opened.manifest.items() if k not in ("format", "schema", "members")}
    edit(members)
    write_container(target, members, fields, **write)  # type: ignore[arg-type]
    return target


class TestSigning:
    def test_a_signed_file_is_trusted(self, signed: Path, keys: Keys) -> None:
        pem, text = keys.public.read_bytes(), str(keys.public)
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

        key = load_pem_public_key(pem)
        raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        for trust in (keys.public, text, pem, key, raw, [keys.other, keys.public], True):
            with load(signed, trust=trust) as model:  # type: ignore[arg-type]
                assert np.allclose(model(np.ones((1, 4), np.float32)), W + load(signed)(np.zeros((1, 4), np.float32)))

    def test_it_says_whose_it_is(self, signed: Path, bare: Path, keys: Keys) -> None:
        assert "signature: good" in describe(signed, trust=keys.public)
        assert "not checked" in describe(signed)
        assert "signature" not in describe(bare)
        with pytest.raises(UntrustedFile):
            describe(bare, trust=keys.public)

    def test_the_same_key_gives_the_same_bytes(self, signed: Path, bare: Path, keys: Keys, tmp_path: Path) -> None:
        copy = tmp_path / "m.ingot"
        copy.write_bytes(bare.read_bytes())
        sign_file(copy, keys.private)
        assert copy.read_bytes() == signed.read_bytes()
        sign_file(copy, keys.other_private)  # another signature in its place
        sign_file(copy, keys.private)
        assert copy.read_bytes() == signed.read_bytes()

    def test_openssl_verifies_it(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        with open_container(signed) as opened:
            (tmp_path / "manifest.json").write_bytes(opened.signed)
            assert opened.signature is not None
            (tmp_path / "signature").write_bytes(opened.signature)
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys.public, "-rawin", "-in", "manifest.json"]
        try:
            done = subprocess.run([*command, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("needs openssl")
        assert done.returncode == 0, done.stderr

    def test_every_member_has_a_hash_that_cannot_be_forged(self, signed: Path) -> None:
        with open_container(signed) as opened:
            assert opened.manifest["schema"] == SIGNED_SCHEMA
            assert all("sha256" in entry and "sums" not in entry for entry in opened.manifest["members"].values())
            assert any(name.endswith(".safetensors") for name in opened.names)

    def test_keys_are_never_overwritten(self, keys: Keys, tmp_path: Path) -> None:
        before = keys.private.read_bytes()
        with pytest.raises(FileExistsError):
            write_keys(keys.private, tmp_path / "new.pem")
        assert keys.private.read_bytes() == before and not list(tmp_path.iterdir())
        assert keys.private.stat().st_mode & 0o777 == 0o600


class TestRefusals:
    def test_not_signed(self, bare: Path, keys: Keys) -> None:
        with pytest.raises(UntrustedFile, match="not signed"):
            load(bare, trust=keys.public)

    def test_signed_by_another_key(self, signed: Path, keys: Keys) -> None:
        for trust in (keys.other, [keys.other]):
            with pytest.raises(UntrustedFile, match="not signed by a key that is trusted"):
                load(signed, trust=trust)

    def test_nobody_is_trusted(self, signed: Path) -> None:
        with pytest.raises(UntrustedFile, match="not loaded"):
            load(signed, trust=False)

    def test_a_signature_of_another_file(
        self, signed: Path, keys: Keys, tmp_path: Path, trap: tuple[bytes, Path]
    ) -> None:
        code, marker = trap
        with open_container(signed) as opened:
            signature = opened.signature
        assert signature is not None

        def poison(members: dict[str, bytes]) -> None:
            members.update({name: code for name in members if name.endswith(".so")})

        def forge(manifest: bytes) -> bytes:
            return signature

        file = repack(signed, tmp_path / "m.ingot", poison, sign=forge)
        for trust in (keys.public, False):
            with pytest.raises(UntrustedFile):
                load(file, trust=trust)
        unsigned = repack(signed, tmp_path / "u.ingot", poison)
        with pytest.raises(UntrustedFile):
            load(unsigned, trust=keys.public)
        assert not marker.exists()

    @pytest.mark.parametrize("command", ["describe", "extract", "inspect"])
    def test_what_only_looks_runs_nothing(
        self, command: str, bare: Path, tmp_path: Path, trap: tuple[bytes, Path]
    ) -> None:
        code, marker = trap
        file = repack(
            bare,
            tmp_path / "m.ingot",
            lambda members: members.update({name: code for name in members if name.endswith(".so")}),
        )
        if command == "inspect":
            from typer.testing import CliRunner

            from ingot.cli import app

            assert CliRunner().invoke(app, ["inspect", str(file)]).exit_code == 0
        else:
            assert main([command, str(file), *([str(tmp_path / "out")] if command == "extract" else [])]) == 0
        assert not marker.exists()

    def test_the_trap_works(self, bare: Path, tmp_path: Path, trap: tuple[bytes, Path]) -> None:
        code, marker = trap
        file = repack(
            bare,
            tmp_path / "m.ingot",
            lambda members: members.update({name: code for name in members if name.endswith(".so")}),
        )
        code_text = f"import ingot_runtime; ingot_runtime.load({str(file)!r})"
        subprocess.run([sys.executable, "-c", code_text], capture_output=True)
        assert marker.exists()
        marker.unlink()

    def test_every_changed_byte_is_refused(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        data = bytearray(signed.read_bytes())
        for at in range(0, len(data), 7):
            data[at] ^= 1 << at % 8
            with pytest.raises(FileError):
                check_container(memoryview(data))
            data[at] ^= 1 << at % 8
        check_container(memoryview(data))

    def test_a_changed_signature_with_its_checksum_in_order(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        file = repack(signed, tmp_path / "m.ingot", lambda members: None, sign=lambda manifest: bytes(64))
        check_container(memoryview(file.read_bytes()))
        with pytest.raises(UntrustedFile):
            load(file, trust=keys.public)

    def test_the_name_of_the_signature_is_taken(self, tmp_path: Path) -> None:
        for name in ("signature.ed25519", "Signature.ed25519"):
            with pytest.raises(UnsafeFile):
                write_container(tmp_path / "m.ingot", {name: bytes(64)}, {})

    @pytest.mark.parametrize("where", ["first", "twice", "absent"])
    def test_a_signature_out_of_its_place(self, where: str) -> None:
        manifest = canonical_json.encode({"format": "ingot", "schema": SIGNED_SCHEMA, "members": {"a": _entry(b"ab")}})
        signature, a = ("signature.ed25519", bytes(64)), ("a", b"ab")
        order = {"first": [signature, a], "twice": [a, signature, signature], "absent": [a]}[where]
        good = _archive([("manifest.json", manifest), a, signature])
        check_container(memoryview(good))
        with pytest.raises(DamagedFile):
            check_container(memoryview(_archive([("manifest.json", manifest), *order])))

    @pytest.mark.parametrize("schema", [1, 2, 3])
    def test_a_signature_in_an_unsigned_schema(self, schema: int) -> None:
        entry = _entry(b"ab") if schema > 1 else {"size": 2, "sha256": _entry(b"ab")["sha256"][0]}
        manifest = canonical_json.encode({"format": "ingot", "schema": schema, "members": {"a": entry}})
        parts = [("manifest.json", manifest), ("a", b"ab")]
        check_container(memoryview(_archive(parts)))
        with pytest.raises(DamagedFile):
            check_container(memoryview(_archive([*parts, ("signature.ed25519", bytes(64))])))

    def test_a_file_that_changes_while_it_is_open(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        file = tmp_path / "m.ingot"
        file.write_bytes(signed.read_bytes())
        with open_container(file, writable=False) as opened:
            name = next(name for name in opened.names if name.endswith(".so"))
            begin = file.read_bytes().index(bytes(opened.read(name))[:64])
            opened.copy(name)
            with file.open("r+b") as writer:
                writer.seek(begin + 100)
                writer.write(b"\xff" * 64)
            with pytest.raises(DamagedFile, match="changed while"):
                opened.copy(name)


class TestKeys:
    @pytest.mark.parametrize(
        "data", [b"", b"junk", bytes(31), bytes(33), b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
    )
    def test_other_bytes(self, signed: Path, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "key").write_bytes(data)
        for trust in (data, tmp_path / "key"):
            with pytest.raises(InvalidKey):
                load(signed, trust=trust)

    def test_other_kinds(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        foreign = x25519.X25519PrivateKey.generate().public_key()
        pem = foreign.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for trust in (pem, keys.private, foreign, 7, None, [], [None]):
            with pytest.raises(InvalidKey):
                load(signed, trust=trust)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            load(signed, trust=tmp_path / "absent.pem")
        for key in (keys.public, tmp_path / "huge"):
            (tmp_path / "huge").write_bytes(bytes(100_000))
            with pytest.raises(InvalidKey):
                sign_file(signed, key)

    def test_without_cryptography(self, signed: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cryptography", None)
        with pytest.raises(SigningUnavailable, match=r"ingot-runtime\[signing\]"):
            load(signed, trust=keys.public)
        load(signed).close()

    def test_the_runtime_imports_it_for_a_key_only(self, signed: Path) -> None:
        code = f"import sys, ingot_runtime; ingot_runtime.load({str(signed)!r}); print('cryptography' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


class TestCommands:
    def test_the_runtime(self, signed: Path, keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["describe", str(signed), "--trust-key", str(keys.public)]) == 0
        assert main(["describe", str(signed), "--trust-key", str(keys.other), "--trust-key", str(keys.public)]) == 0
        assert main(["describe", str(signed), "--trust-key", str(keys.other)]) == 1
        assert "not signed by a key that is trusted" in capsys.readouterr().err

    def test_extract(self, signed: Path, keys: Keys, tmp_path: Path) -> None:
        target = tmp_path / "out"
        assert main(["extract", str(signed), str(target), "--trust-key", str(keys.other)]) == 1
        assert not target.exists()
        assert main(["extract", str(signed), str(target), "--trust-key", str(keys.public)]) == 0

    def test_sign_and_keygen(self, bare: Path, tmp_path: Path) -> None:
        from typer.testing import CliRunner

        from ingot.cli import app

        def run(*arguments: object) -> int:
            return CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code

        key, file, array = tmp_path / "k.pem", tmp_path / "m.ingot", tmp_path / "x.npy"
        np.save(array, np.ones((1, 4), np.float32))
        assert run("keygen", key) == 0 and (tmp_path / "k.pub.pem").exists()
        assert run("keygen", key) == 1
        assert run("sign", bare, "--key", key, "-o", file) == 0
        assert run("run", file, "--input", f"x={array}", "--trust-key", tmp_path / "k.pub.pem") == 0
        assert run("run", bare, "--input", f"x={array}", "--trust-key", tmp_path / "k.pub.pem") == 1
        assert run("run", bare, "--input", f"x={array}") == 0


def _entry(data: bytes) -> dict[str, object]:
    digest = ingot_runtime.container.checksums.sha256(data)
    return {"size": len(data), "crc32": f"{zlib.crc32(data):08x}", "sha256": [digest]}


def _archive(parts: list[tuple[str, bytes]]) -> bytes:
    slots = archive.plan((name, len(data)) for name, data in parts)
    crcs = [zlib.crc32(data) for _, data in parts]
    records = b"".join(
        archive.local_header(slot, crc) + data for slot, crc, (_, data) in zip(slots, crcs, parts, strict=True)
    )
    digest = ingot_runtime.container.checksums.sha256(parts[0][1])
    return records + archive.directory(slots, crcs, b"ingot manifest sha256 " + digest.encode())
