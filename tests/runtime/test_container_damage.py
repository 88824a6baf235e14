"""Damaged, forged and other files: none is ever taken for a container."""

import io
import json
import pickle
import zipfile
import zlib
from pathlib import Path

import pytest

from ingot_runtime import (
    SCHEMA,
    DamagedFile,
    NotAnIngotFile,
    UnsafeFile,
    UnsupportedSchema,
    check_container,
    open_container,
    write_container,
)
from ingot_runtime.container import READABLE, canonical_json, checksums, schema
from tests.runtime.container_files import (
    CRC,
    FIELDS,
    MEMBERS,
    ROWS,
    SHA,
    TENSORS,
    entry_of,
    forged,
    manifest_of,
    refusal,
    schema_1,
    sums_of,
    written,
)


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
    def test_schema_is_not_a_version(self, schema: object) -> None:
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
