"""The container: one file for given members, however it is read, and no half of one where a write fails."""

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot_runtime import (
    SCHEMA,
    DamagedFile,
    MissingMember,
    check_container,
    open_container,
    write_container,
)
from ingot_runtime.container import archive, canonical_json, chunked_hashing, schema
from tests.runtime.container_files import (
    FIELDS,
    MEMBERS,
    ROWS,
    TENSORS,
    Streamed,
    forged,
    manifest_of,
    refusal,
    schema_1,
    schema_2,
    written,
)


class TestRoundTrip:
    def test_members_and_manifest_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, FIELDS)
        with open_container(path) as opened:
            assert opened.names == ("empty", "graph.json", "weights/a.bin")
            assert {name: bytes(opened.read(name)) for name in opened.names} == MEMBERS
            assert opened.manifest == manifest_of(MEMBERS, **FIELDS)
            assert "graph.json" in opened
            assert "manifest.json" not in opened

    def test_no_members(self, tmp_path: Path) -> None:
        assert check_container(memoryview(written(tmp_path, {}, {}))).members == {}

    @settings(deadline=None)  # it waits for the disk
    @given(
        members=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_.-]{0,80}", fullmatch=True), st.binary(max_size=300)),
        note=st.text(st.characters(codec="utf-8")),
    )
    def test_any_members(self, tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], note: str) -> None:
        members.pop("manifest.json", None)
        data = written(tmp_path_factory.mktemp("any"), members, {"note": note})
        contents = check_container(memoryview(data))
        assert contents.manifest["note"] == note
        assert {name: data[begin:end] for name, (begin, end) in contents.members.items()} == members

    def test_streamed_members_are_asked_once(self, tmp_path: Path) -> None:
        calls = []

        def chunks() -> Iterator[bytes | memoryview]:
            calls.append(1)
            yield b"ab"
            yield memoryview(b"")
            yield memoryview(bytes(6)).cast("H")

        assert written(tmp_path, {"s": Streamed(8, chunks)}) == written(tmp_path, {"s": b"ab" + bytes(6)})
        assert calls == [1]

    @pytest.mark.parametrize("name", ["large", "large.safetensors"])
    def test_data_larger_than_a_piece_and_hashed_by_threads(self, tmp_path: Path, name: str) -> None:
        large = bytes(range(256)) * 40_000
        path = tmp_path / "m.ingot"
        write_container(path, {name: large, "small": b"1"}, {})
        assert chunked_hashing.count(len(large)) == 3
        assert len(large) > chunked_hashing._THREADS_FROM > 0
        with open_container(path) as opened:
            assert opened.read(name) == large
        data = bytearray(path.read_bytes())
        begin = data.index(large[:1000])
        for at in (0, chunked_hashing.PIECE - 1, chunked_hashing.PIECE, 2 * chunked_hashing.PIECE, len(large) - 1):
            data[begin + at] ^= 1
            error = refusal(data)
            assert isinstance(error, DamagedFile)
            assert (error.member, error.offset) == (name, begin + at - at % chunked_hashing.PIECE)
            data[begin + at] ^= 1
        data[begin] ^= 1
        data[begin + chunked_hashing.PIECE] ^= 1
        error = refusal(data)
        assert isinstance(error, DamagedFile) and error.offset == begin

    @pytest.mark.parametrize("name", ["a", "a.safetensors"])
    @pytest.mark.parametrize(
        "size",
        [0, 1, chunked_hashing.PIECE - 1, chunked_hashing.PIECE, chunked_hashing.PIECE + 1, 2 * chunked_hashing.PIECE],
    )
    def test_sizes_around_a_piece(self, tmp_path: Path, size: int, name: str) -> None:
        block = bytes(range(256)) * (chunked_hashing.PIECE // 128)
        data = written(tmp_path, {name: block[:size]}, {})
        assert data == forged(canonical_json.encode(manifest_of({name: block[:size]})), {name: block[:size]})

    def test_a_failure_while_hashing_is_not_lost(self) -> None:
        block = bytes(2 * chunked_hashing.PIECE)
        cut = list(
            chunked_hashing.cut(
                "a",
                0,
                len(block),
                chunked_hashing.SHA256,
                [hashlib.sha256(bytes(chunked_hashing.PIECE)).hexdigest()] * 2,
            )
        )
        assert chunked_hashing.find_damage(memoryview(block), cut) is None

        def forget(begin: int, end: int) -> None:
            raise MemoryError(begin)

        with pytest.raises(MemoryError):
            chunked_hashing.find_damage(memoryview(block), cut, forget)

    def test_a_missing_member_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, FIELDS)
        with open_container(path) as opened, pytest.raises(MissingMember, match=r"'nope'[^$]*m\.ingot[^$]*graph\.json"):
            opened.read("nope")
        assert issubclass(MissingMember, KeyError)


class TestBytes:
    def test_same_input_same_bytes(self, tmp_path: Path) -> None:
        backwards = dict(reversed(MEMBERS.items()))
        assert written(tmp_path) == written(tmp_path, backwards, dict(reversed(FIELDS.items())))

    def test_same_bytes_in_another_process_and_time_zone(self, tmp_path: Path) -> None:
        code = f"import sys, ingot_runtime as r; r.write_container(sys.argv[1], {MEMBERS!r}, {FIELDS!r})"
        environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", code, tmp_path / "other.ingot"], check=True, env=environment)
        assert (tmp_path / "other.ingot").read_bytes() == written(tmp_path)

    def test_the_layout_is_pinned(self, tmp_path: Path) -> None:
        # A change here is a change of the format: files written before would be refused. Raise SCHEMA with it.
        expected = "830f40aa8293b608761fb2c01b026ddb1c1ca4b32ecc1a07c52880097bc6612d"
        assert hashlib.sha256(written(tmp_path, ROWS)).hexdigest() == expected

    def test_a_file_of_schema_2_is_read(self) -> None:
        data = schema_2(MEMBERS, **FIELDS)
        # The hash of the file that the last release with schema 2 wrote for these members.
        expected = "7df37405dc4cbbda2ffc24de4c754d020bd6c6ae86a23c5bb936cba3779fdbfc"
        assert hashlib.sha256(data).hexdigest() == expected
        data = schema_2(TENSORS, **FIELDS)
        contents = check_container(data)
        assert {name: bytes(data[begin:end]) for name, (begin, end) in contents.members.items()} == TENSORS

    def test_every_damaged_byte_of_schema_2_is_refused(self) -> None:
        data = bytearray(schema_2(TENSORS, **FIELDS))
        for at in range(len(data)):
            data[at] ^= 1 << at % 8
            assert refusal(data) is not None, at
            data[at] ^= 1 << at % 8

    def test_a_file_of_schema_1_is_read(self) -> None:
        data = schema_1(MEMBERS, **FIELDS)
        # The hash of the file that the last release with schema 1 wrote for these members.
        expected = "b1c1c3e21fe042ad3b6d2c4e8eb20b5cbcfe55433d64f496db3ef77391d3c8e3"
        assert hashlib.sha256(data).hexdigest() == expected
        contents = check_container(data)
        assert {name: bytes(data[begin:end]) for name, (begin, end) in contents.members.items()} == MEMBERS
        assert contents.manifest["tool"] == FIELDS["tool"]

    def test_every_damaged_byte_of_schema_1_is_refused(self) -> None:
        data = bytearray(schema_1(MEMBERS, **FIELDS))
        for at in range(len(data)):
            data[at] ^= 1 << at % 8
            assert refusal(data) is not None, at
            data[at] ^= 1 << at % 8

    def test_data_is_aligned_in_file_and_memory(self, tmp_path: Path) -> None:
        np = pytest.importorskip("numpy")
        members = {"n" * length: bytes(length) for length in range(1, 130)}
        path = tmp_path / "m.ingot"
        write_container(path, members, {})
        with open_container(path) as opened:
            for name in opened.names:
                assert np.frombuffer(opened.read(name), np.uint8).ctypes.data % archive.ALIGNMENT == 0

    def test_zipfile_reads_it(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(written(tmp_path))) as archived:
            assert archived.testzip() is None
            assert archived.namelist() == ["manifest.json", "empty", "graph.json", "weights/a.bin"]
            assert {name: archived.read(name) for name in archived.namelist()[1:]} == MEMBERS
            assert json.loads(archived.read("manifest.json")) == manifest_of(MEMBERS, **FIELDS)
            for info in archived.infolist():
                assert info.date_time == (1980, 1, 1, 0, 0, 0)
                assert info.compress_type == zipfile.ZIP_STORED

    @pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")
    def test_unzip_reads_it(self, tmp_path: Path) -> None:
        written(tmp_path)
        done = subprocess.run(["unzip", "written.ingot", "-d", "out"], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "out/weights/a.bin").read_bytes() == MEMBERS["weights/a.bin"]


class TestZip64:
    # How many 64-bit numbers each directory entry has: two for a size, one for an offset. The last limit leaves only
    # the place of the directory itself.
    @pytest.mark.parametrize(("limit", "large"), [(500, [0, 2, 1, 3]), (1000, [0, 0, 1, 1]), (1500, [0, 0, 0, 0])])
    def test_small_files_with_a_low_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, large: list[int]
    ) -> None:
        monkeypatch.setattr(archive, "ZIP64_LIMIT", limit)
        members = {"a": bytes(600), "b": b"b", "c": b"c" * 600}
        data = written(tmp_path, members, {})
        assert b"PK\x06\x06" in data
        assert check_container(memoryview(data)).members.keys() == members.keys()
        with zipfile.ZipFile(io.BytesIO(data)) as archived:
            assert archived.testzip() is None
            assert {name: archived.read(name) for name in members} == members
            assert [max(0, len(info.extra) - 4) // 8 for info in archived.infolist()] == large
        flipped = bytearray(data)
        for at in range(data.index(b"PK\x01\x02"), len(data)):
            flipped[at] ^= 1
            assert refusal(flipped) is not None, at
            flipped[at] ^= 1

    def test_a_low_limit_changes_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        members = {"a": bytes(600)}
        monkeypatch.setattr(archive, "ZIP64_LIMIT", 500)
        data = written(tmp_path, members, {})
        monkeypatch.undo()
        assert isinstance(refusal(data), DamagedFile)

    @pytest.mark.slow
    def test_a_member_past_four_gib(self, tmp_path: Path) -> None:
        block = memoryview(bytes(16 << 20))
        size = (4 << 30) + 5
        large = Streamed(size, lambda: iter([*[block] * 256, memoryview(b"tail!")]))
        path = tmp_path / "m.ingot"
        write_container(path, {"large": large, "later": b"later"}, {})
        with open_container(path) as opened:
            assert opened.read("large")[-5:] == b"tail!"
            assert opened.read("later") == b"later"
        with zipfile.ZipFile(path) as archived:
            assert archived.getinfo("large").file_size == size
            assert archived.read("later") == b"later"


class TestMapping:
    def test_a_read_only_view(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, {})
        with open_container(path, writable=False) as opened:
            assert opened.read("weights/a.bin").readonly
            assert opened.read("weights/a.bin") == MEMBERS["weights/a.bin"]

    def test_writing_to_a_view_leaves_the_file_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, {})
        before = path.read_bytes()
        with open_container(path) as opened:
            opened.read("weights/a.bin")[0] = 99
            assert opened.read("weights/a.bin")[0] == 99
        assert path.read_bytes() == before

    def test_a_view_outlives_the_container(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, {})
        opened = open_container(path)
        view = opened.read("graph.json")
        opened.close()
        opened.close()
        assert view == b"{}"
        with pytest.raises(ValueError):
            opened.read("graph.json")

    def test_replacing_an_open_file_leaves_its_views_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, {"a": b"old"}, {})
        with open_container(path) as opened:
            write_container(path, {"a": b"new"}, {})
            assert opened.read("a") == b"old"


class TestFailedWrites:
    @pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
    @pytest.mark.parametrize("existing", [False, True])
    def test_nothing_is_left_and_the_old_file_stays(self, tmp_path: Path, error: BaseException, existing: bool) -> None:
        path = tmp_path / "m.ingot"
        if existing:
            write_container(path, MEMBERS, FIELDS)
        before = path.read_bytes() if existing else None

        def chunks() -> Iterator[bytes | memoryview]:
            yield b"1234"
            assert len(list(tmp_path.iterdir())) == 1 + existing  # the temporary file is there by now
            raise error

        with pytest.raises(type(error)) as caught:
            write_container(path, {"a": b"a", "z": Streamed(8, chunks)}, {})
        assert any(str(path) in note for note in caught.value.__notes__)
        assert [entry.name for entry in tmp_path.iterdir()] == ["m.ingot"] * existing
        assert not existing or path.read_bytes() == before

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_failures_at_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            write_container(tmp_path / "m.ingot", MEMBERS, FIELDS)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("size", [0, 3, 5])
    def test_a_member_of_another_size_than_it_said(self, tmp_path: Path, size: int) -> None:
        with pytest.raises(ValueError, match=f"'s' declares {size} bytes"):
            write_container(tmp_path / "m.ingot", {"s": Streamed(size, lambda: iter([b"12", b"34"]))}, {})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"schema": SCHEMA}, "schema"), ({"members": {}, "format": 1}, "format, members"),
            ({"x": float("nan")}, "JSON"),
            pytest.param({"x": "x" * schema.MANIFEST_LIMIT}, "put large data in a member", id="too large"),
        ],
    )  # fmt: skip
    def test_bad_manifest_fields(self, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            write_container(tmp_path / "m.ingot", {}, fields)
        assert list(tmp_path.iterdir()) == []

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            write_container(tmp_path / "none" / "m.ingot", {}, {})

    @pytest.mark.skipif(os.name != "posix", reason="permission bits and links are POSIX's")
    def test_permissions_follow_the_umask_and_links_stay_links(self, tmp_path: Path) -> None:
        target, link = tmp_path / "m.ingot", tmp_path / "link"
        link.symlink_to(target)
        umask = os.umask(0o027)
        try:
            write_container(link, {}, {})
        finally:
            os.umask(umask)
        assert link.is_symlink()
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
