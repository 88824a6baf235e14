"""The container: one file for given members, and no other file is ever taken for it."""

import hashlib
import io
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot_runtime import (
    SCHEMA,
    DamagedFile,
    FileError,
    MissingMember,
    NotAnIngotFile,
    UnsafeFile,
    UnsupportedSchema,
    check_container,
    open_container,
    write_container,
)
from ingot_runtime.container import READABLE, archive, canonical_json, checksums, chunked_hashing, schema

MEMBERS = {"weights/a.bin": bytes(range(70)), "graph.json": b"{}", "empty": b""}
TENSORS = {**MEMBERS, "w.safetensors": bytes(range(201))}
ROWS = {**TENSORS, "w.safetensors": bytes(range(251)) * 34}  # one whole row of digests.sums, and bytes behind it
SHA, CRC = hashlib.sha256(b"ab").hexdigest(), f"{zlib.crc32(b'ab'):08x}"
FIELDS = {"isa": "x86-64-v4", "tool": {"name": "ingot", "ünïcode": [1, 2.5, None]}}


@dataclass(frozen=True, slots=True)
class Streamed:
    size: int
    make: Callable[[], Iterator[bytes | memoryview]]

    def chunks(self) -> Iterator[bytes | memoryview]:
        return self.make()


def written(folder: Path, members: Mapping[str, Any] = MEMBERS, fields: Mapping[str, Any] = FIELDS) -> bytes:
    path = folder / "written.ingot"
    write_container(path, members, fields)
    return path.read_bytes()


def forged(manifest: bytes, members: Mapping[str, bytes] | None = None) -> memoryview:
    """A file whose records and hashes are all in order, around any manifest at all."""
    data = {"manifest.json": manifest, **(members or {})}
    slots = archive.plan((name, len(content)) for name, content in data.items())
    crcs = [zlib.crc32(content) for content in data.values()]
    out = io.BytesIO()
    for slot, crc in zip(slots, crcs, strict=True):
        out.write(archive.local_header(slot, crc) + data[slot.name])
    out.write(archive.directory(slots, crcs, b"ingot manifest sha256 " + hashlib.sha256(manifest).hexdigest().encode()))
    return memoryview(out.getvalue())


def sums_of(data: bytes) -> str:
    """`digests.sums`, in its own words and without numpy."""
    row = 8 * checksums.ROW
    end = len(data) - len(data) % row
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, end, 8)]
    columns = [sum(words[column :: checksums.ROW]) % 2**64 for column in range(checksums.ROW)]
    return hashlib.sha256(b"".join(column.to_bytes(8, "little") for column in columns) + data[end:]).hexdigest()


def entry_of(name: str, data: bytes, schema: int = SCHEMA) -> dict[str, Any]:
    parts = [data[at : at + chunked_hashing.PIECE] for at in range(0, len(data), chunked_hashing.PIECE)]
    entry: dict[str, Any] = {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    if schema == 3 and name.endswith(".safetensors"):
        return {**entry, "sums": [sums_of(part) for part in parts]}
    return {**entry, "sha256": [hashlib.sha256(part).hexdigest() for part in parts]}


def manifest_of(members: Mapping[str, bytes], /, **fields: Any) -> dict[str, Any]:
    entries = {name: entry_of(name, data, fields.get("schema", SCHEMA)) for name, data in members.items()}
    return {"format": "ingot", "schema": SCHEMA, "members": entries, **fields}


def schema_2(members: Mapping[str, bytes], **fields: Any) -> memoryview:
    """A file as releases before schema 3 wrote it."""
    members = dict(sorted(members.items()))
    return forged(canonical_json.encode(manifest_of(members, schema=2, **fields)), members)


def schema_1(members: Mapping[str, bytes], **fields: Any) -> memoryview:
    """A file as releases before schema 2 wrote it."""
    members = dict(sorted(members.items()))
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    return forged(canonical_json.encode({"format": "ingot", "schema": 1, "members": entries, **fields}), members)


def refusal(data: bytes | bytearray | memoryview) -> FileError | None:
    try:
        check_container(memoryview(data))
    except FileError as error:
        return error
    return None


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


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of seven words: the tensors of TENSORS then have several rows and some bytes behind them."""
    monkeypatch.setattr(checksums, "ROW", 7)


@pytest.mark.usefixtures("short_rows")
class TestDamage:
    def test_the_tensors_have_rows_and_bytes_behind_them(self, tmp_path: Path) -> None:
        rows, behind = divmod(len(TENSORS["w.safetensors"]), 8 * checksums.ROW)
        assert rows > 2 and behind % 8
        entries = check_container(memoryview(written(tmp_path, TENSORS))).manifest["members"]
        assert [name for name, entry in entries.items() if "sums" in entry] == ["w.safetensors"]

    def test_every_flipped_bit_is_refused(self, tmp_path: Path) -> None:
        data = bytearray(written(tmp_path, TENSORS))
        assert refusal(data) is None
        for at in range(len(data)):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert refusal(data) is not None, (at, bit)
                data[at] ^= 1 << bit

    def test_every_damaged_byte_of_whole_rows_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()  # rows as long as they are
        assert 0 < len(ROWS["w.safetensors"]) - 8 * checksums.ROW < 1000
        data = bytearray(written(tmp_path, ROWS))
        for at in range(len(data)):
            data[at] ^= 1 << at % 8
            assert refusal(data) is not None, at
            data[at] ^= 1 << at % 8

    def test_every_truncation_is_refused(self, tmp_path: Path) -> None:
        data = memoryview(written(tmp_path, TENSORS))
        for length in range(1, len(data)):
            assert isinstance(refusal(data[:length]), DamagedFile), length
        assert isinstance(refusal(b""), NotAnIngotFile)

    def test_every_inserted_or_lost_byte_is_refused(self, tmp_path: Path) -> None:
        data = written(tmp_path, TENSORS)
        for at in range(len(data)):
            assert refusal(data[:at] + b"\0" + data[at:]) is not None, at
            assert refusal(data[:at] + data[at + 1 :]) is not None, at

    @pytest.mark.parametrize("more", [b"\0", b"P", b"x" * 1000])
    def test_appended_bytes_are_refused(self, tmp_path: Path, more: bytes) -> None:
        data = written(tmp_path)
        assert isinstance(refusal(data + more), DamagedFile)
        assert isinstance(refusal(data + data), DamagedFile)
        assert refusal(more + data) is not None

    def test_messages_say_where_why_and_what_to_do(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        write_container(path, MEMBERS, FIELDS)
        data = bytearray(path.read_bytes())
        at = data.index(MEMBERS["weights/a.bin"])
        data[at + 3] ^= 4
        path.write_bytes(data)
        with pytest.raises(DamagedFile) as caught:
            open_container(path)
        assert (caught.value.path, caught.value.member, caught.value.offset) == (str(path), "weights/a.bin", at)
        lines = str(caught.value).splitlines()
        assert [line.split(":")[0] for line in lines[1:]] == ["  where", "  why", "  what to do"]
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_flipped_header_byte_is_located(self, tmp_path: Path) -> None:
        data = bytearray(written(tmp_path))
        at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1) + 12  # a date in the second directory entry
        data[at] ^= 1
        error = refusal(data)
        assert isinstance(error, DamagedFile) and error.offset == at

    def test_an_archive_that_another_tool_rewrote_is_refused(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(written(tmp_path))) as old, zipfile.ZipFile(out, "w") as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        assert isinstance(refusal(out.getvalue()), DamagedFile)


class TestForgery:
    """Files whose hashes are in order, and that are refused all the same."""

    def test_the_forger_can_make_a_good_file(self, tmp_path: Path) -> None:
        members = dict(sorted(TENSORS.items()))
        assert forged(canonical_json.encode(manifest_of(members, **FIELDS)), members) == written(tmp_path, TENSORS)

    @pytest.mark.parametrize(
        "name",
        [
            "/etc/passwd", "../up", "a/../../up", "..", ".", "./a", "a/./b", "a//b", "a/", "", "a\\b", "\\\\host\\a",
            "a\0b", "C:a", "C:/a", "a:b", "ünï", "a b", "a\n", ".hidden", "-rf", "a/.b", "x" * 241, "~",
            "manifest.json", "Manifest.JSON", "manifest.json/a",
        ],
    )  # fmt: skip
    def test_unsafe_names(self, tmp_path: Path, name: str) -> None:
        error = refusal(forged(canonical_json.encode(manifest_of({name: b""}))))
        assert isinstance(error, UnsafeFile) and error.member == name and repr(name) in str(error)
        with pytest.raises(UnsafeFile):
            write_container(tmp_path / "m.ingot", {name: b""}, {})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("names", [("a", "A"), ("lib/x.so", "LIB/x.so"), ("a", "a/b"), ("A/b/c", "a/B")])
    def test_names_that_collide(self, names: tuple[str, str]) -> None:
        assert isinstance(refusal(forged(canonical_json.encode(manifest_of(dict.fromkeys(names, b""))))), UnsafeFile)

    def test_a_repeated_name(self) -> None:
        manifest = canonical_json.encode(manifest_of({"a": b"", "b": b""})).replace(b'"b":', b'"a":')
        assert isinstance(refusal(forged(manifest)), UnsafeFile)

    @pytest.mark.parametrize(
        ("schema", "word"),
        [(max(READABLE) + 1, "newer"), (1000, "update")],
    )
    def test_other_schemas(self, schema: int, word: str) -> None:
        error = refusal(forged(canonical_json.encode({"format": "ingot", "schema": schema, "unheard": "of"})))
        assert isinstance(error, UnsupportedSchema)
        assert f"schema {schema}" in str(error) and "reads schema 1, 2, 3, 4" in str(error) and word in str(error)

    def test_an_older_schema(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        data = written(tmp_path)
        monkeypatch.setattr(schema, "SCHEMA", SCHEMA + 1)
        monkeypatch.setattr(schema, "READABLE", (SCHEMA + 1,))
        error = refusal(data)
        assert isinstance(error, UnsupportedSchema) and "older" in str(error)

    @pytest.mark.parametrize("schema", [0, -1, True, "1", 1.0, None])
    def test_schemas_that_are_no_version(self, schema: object) -> None:
        assert isinstance(refusal(forged(canonical_json.encode(manifest_of({}, schema=schema)))), DamagedFile)

    @pytest.mark.parametrize(
        "entry",
        [
            {"size": 2}, {"sha256": [SHA], "crc32": CRC}, {"size": "2", "sha256": [SHA], "crc32": CRC},
            {"size": True, "sha256": [SHA], "crc32": CRC}, {"size": -1, "sha256": [SHA], "crc32": CRC},
            {"size": -1, "sha256": [], "crc32": CRC}, {"size": 2.0, "sha256": [SHA], "crc32": CRC},
            {"size": 2, "sha256": [SHA[1:]], "crc32": CRC}, {"size": 2, "sha256": [SHA.upper()], "crc32": CRC},
            {"size": 2, "sha256": [None], "crc32": CRC}, {"size": 2, "sha256": [], "crc32": CRC},
            {"size": 2, "sha256": [SHA, SHA], "crc32": CRC}, {"size": 2, "sha256": SHA, "crc32": CRC},
            {"size": 2, "sha256": [SHA], "crc32": CRC[1:]}, {"size": 2, "sha256": [SHA], "crc32": int(CRC, 16)},
            {"size": 2, "sha256": [SHA], "crc32": CRC.upper()}, {"size": 2, "sha256": [SHA]},
            {"size": 2, "sha256": [SHA], "crc32": CRC, "more": 1}, {"size": 2, "sha256": SHA},
            {"size": 2, "sums": [sums_of(b"ab")], "crc32": CRC},
            [], None, 2,
        ],
    )  # fmt: skip
    def test_entries_of_other_types(self, entry: object) -> None:
        manifest = manifest_of({}, members={"a": entry})
        assert isinstance(refusal(forged(canonical_json.encode(manifest), {"a": b"ab"})), DamagedFile)

    @pytest.mark.parametrize("entry", [{"size": 2}, {"size": 2, "sha256": [SHA]}, {"size": True, "sha256": SHA}, None])
    def test_entries_of_other_types_in_schema_1(self, entry: object) -> None:
        manifest = manifest_of({}, schema=1, members={"a": entry})
        assert isinstance(refusal(forged(canonical_json.encode(manifest), {"a": b"ab"})), DamagedFile)

    @pytest.mark.parametrize(("schema", "kind"), [(2, "sums"), (3, "sha256")])
    def test_each_schema_has_one_kind_of_hash_for_tensors(self, schema: int, kind: str) -> None:
        sound = entry_of("a.safetensors", b"ab", schema)
        other = {"size": 2, "crc32": CRC, kind: [SHA if kind == "sha256" else sums_of(b"ab")]}
        for entry, error in ((sound, None), (other, DamagedFile), ({**sound, **other}, DamagedFile)):
            manifest = manifest_of({}, schema=schema, members={"a.safetensors": entry})
            found = refusal(forged(canonical_json.encode(manifest), {"a.safetensors": b"ab"}))
            assert found is None if error is None else isinstance(found, error)

    def test_the_sound_entries_next_to_them(self) -> None:
        assert manifest_of({"a": b"ab"})["members"]["a"] == {"size": 2, "sha256": [SHA], "crc32": CRC}
        assert refusal(forged(canonical_json.encode(manifest_of({"a": b"ab"})), {"a": b"ab"})) is None
        assert refusal(schema_1({"a": b"ab"})) is None

    @pytest.mark.parametrize("size", [0, 1, 3, 64, 2**31, 2**32, 2**63, 2**64, 10**100])
    def test_sizes_that_lie(self, size: int) -> None:
        manifest = manifest_of({"a": b"ab"})
        manifest["members"]["a"]["size"] = size
        assert isinstance(refusal(forged(canonical_json.encode(manifest), {"a": b"ab"})), DamagedFile)

    @pytest.mark.parametrize(
        "manifest",
        [
            b"", b"{", b"\xff", b"{} ", b'{"format":"ingot","format":"ingot"}', b"NaN",
            pytest.param(b"[" * 100_000, id="nested"),
            json.dumps(manifest_of({})).encode(),
            canonical_json.encode(manifest_of({}, x=1)).replace(b'"x":1', b'"x":1e999'),
            canonical_json.encode(manifest_of({}, x=1)).replace(b'"x":1', b'"x":"\\ud800"'),
            pytest.param(
                canonical_json.encode(manifest_of({}, x=1)).replace(b'"x":1', b'"x":' + b"9" * 5000), id="long number"
            ),
            canonical_json.encode(manifest_of({}, x=1)).replace(b'"x":1', b'"x":1E2'),
            canonical_json.encode(manifest_of({}, members=[])),
            canonical_json.encode({"format": "ingot", "schema": SCHEMA}),
        ],
    )  # fmt: skip
    def test_manifests_that_are_not_ours(self, manifest: bytes) -> None:
        assert refusal(forged(manifest)) is not None

    def test_a_member_that_the_manifest_does_not_list(self) -> None:
        assert isinstance(refusal(forged(canonical_json.encode(manifest_of({})), {"a": b"ab"})), DamagedFile)

    def test_members_out_of_order(self) -> None:
        members = {"b": b"1", "a": b"2"}
        assert isinstance(refusal(forged(canonical_json.encode(manifest_of(members)), members)), DamagedFile)

    def test_a_crc_that_is_not_the_manifests(self) -> None:
        data = bytearray(forged(canonical_json.encode(manifest_of({"a": b"ab"})), {"a": b"ab"}))
        crc = zlib.crc32(b"ab").to_bytes(4, "little")
        assert data.count(crc) == 2
        assert isinstance(refusal(data.replace(crc, bytes(4))), DamagedFile)

    def test_a_wrong_crc_on_both_sides_of_schema_1(self) -> None:
        data = bytearray(schema_1({"a": b"ab"}))
        crc = zlib.crc32(b"ab").to_bytes(4, "little")
        assert data.count(crc) == 2
        assert isinstance(refusal(data.replace(crc, bytes(4))), DamagedFile)


class TestOtherFiles:
    def test_other_kinds_of_file(self, tmp_path: Path) -> None:
        other_zip = io.BytesIO()
        with zipfile.ZipFile(other_zip, "w") as archived:
            archived.writestr("archive/data.pkl", b"x" * 500)
        for data in [b"", b"\x7fELF" + bytes(100), b"{}", other_zip.getvalue(), b"PK\x05\x06" + bytes(18)]:
            path = tmp_path / "other"
            path.write_bytes(data)
            with pytest.raises(NotAnIngotFile, match="other"):
                open_container(path)

    def test_another_format_in_the_same_container(self) -> None:
        assert isinstance(refusal(forged(canonical_json.encode({"format": "other"}))), NotAnIngotFile)
        assert isinstance(refusal(forged(b"[]")), NotAnIngotFile)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            open_container(tmp_path / "none")


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
