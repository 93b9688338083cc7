"""The file format of a saved session: what is written comes back, what is damaged is told."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError
from onnx_genai.pipelines.session_file import read_session, write_session

IDENTITY = {"model": "abc", "layers": [[2, 8, 8]]}
TOKENS = tuple(range(100, 150))
BLOCK_SIZE, BLOCK_BYTES, NUM_BLOCKS = 16, 96, 3
KV = (np.arange(NUM_BLOCKS * BLOCK_BYTES) * 7 % 251).astype(np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.kv"
    write_session(path, identity=IDENTITY, tokens=TOKENS, kv_tokens=48, block_size=BLOCK_SIZE, kv=KV)
    return path


def test_all_that_was_written_comes_back(path: Path) -> None:
    saved = read_session(path)

    assert saved.identity == IDENTITY
    assert saved.tokens == TOKENS
    assert saved.kv_tokens == 48
    assert np.array_equal(saved.kv, KV)
    assert saved.damage == ""
    assert [each.name for each in path.parent.iterdir()] == ["s.kv"]


def test_session_without_tokens_and_kv_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_session(path, identity={}, tokens=(), kv_tokens=0, block_size=0, kv=np.empty(0, dtype=np.uint8))

    saved = read_session(path)

    assert (saved.tokens, saved.kv_tokens, saved.kv.size, saved.damage) == ((), 0, 0, "")


def test_every_cut_is_told(path: Path) -> None:
    whole = path.read_bytes()
    kv_start = len(whole) - NUM_BLOCKS * (BLOCK_BYTES + 4)

    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < kv_start:
            with pytest.raises(PackageError, match=r"damaged|no session file"):
                read_session(path)
        else:
            saved = read_session(path)
            intact = (size - kv_start) // (BLOCK_BYTES + 4)
            assert saved.tokens == TOKENS
            assert saved.kv_tokens == intact * BLOCK_SIZE
            assert np.array_equal(saved.kv, KV[: intact * BLOCK_BYTES])
            assert f"the KV of tokens {intact * BLOCK_SIZE} to" in saved.damage


def test_every_changed_byte_is_told(path: Path) -> None:
    whole = path.read_bytes()

    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x41
        path.write_bytes(changed)
        try:
            saved = read_session(path)
        except PackageError:
            continue
        assert saved.damage, place
        assert saved.tokens == TOKENS
        assert np.array_equal(saved.kv, KV[: saved.kv.size])


def test_bytes_behind_the_end_are_told(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")

    assert "behind its end" in read_session(path).damage


@pytest.mark.parametrize("content", [b"", b"GGUF", b"ONNXGAIS", bytes(64)])
def test_foreign_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)

    with pytest.raises(PackageError, match="is no session file"):
        read_session(tmp_path / "f")


def test_other_version_is_refused(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8:12] = struct.pack("<I", 7)
    path.write_bytes(whole)

    with pytest.raises(PackageError, match="version 7; this version of onnx_genai reads version 1"):
        read_session(path)


def _header(text: bytes) -> bytes:
    import zlib

    start = b"ONNXGAIS" + struct.pack("<II", 1, len(text)) + text
    return start + struct.pack("<I", zlib.crc32(start))


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b"nonsense",
        b"[" * 100_000,
        b'{"identity": {}, "num_tokens": -1, "kv_tokens": 0, "block_size": 0, "block_bytes": 0}',
        b'{"identity": {}, "num_tokens": 1e3, "kv_tokens": 0, "block_size": 0, "block_bytes": 0}',
        b'{"identity": {}, "num_tokens": 99999999999, "kv_tokens": 0, "block_size": 0, "block_bytes": 0}',
        b'{"identity": {}, "num_tokens": 0, "kv_tokens": 16, "block_size": 0, "block_bytes": 1}',
        b'{"identity": {}, "num_tokens": 0, "kv_tokens": 16, "block_size": 16, "block_bytes": 1}',
        b'{"identity": {}, "num_tokens": 20, "kv_tokens": 10, "block_size": 16, "block_bytes": 1}',
    ],
)
def test_header_with_a_right_checksum_and_wrong_content_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(_header(text))

    with pytest.raises(PackageError, match="is damaged"):
        read_session(tmp_path / "f")


def test_missing_file_and_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such session file"):
        read_session(tmp_path / "missing")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_session(tmp_path)


@pytest.mark.parametrize("place", ["folder", "missing/s.kv", "file/s.kv"])
def test_path_that_cannot_be_written_is_refused_and_leaves_nothing(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(InvalidArgumentError, match="cannot be saved"):
        write_session(
            tmp_path / place, identity={}, tokens=(1,), kv_tokens=0, block_size=0, kv=np.empty(0, dtype=np.uint8)
        )

    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_failed_write_leaves_the_earlier_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(Exception, match="No space left on device; make room"):
        write_session(path, identity={}, tokens=(1,), kv_tokens=0, block_size=0, kv=np.empty(0, dtype=np.uint8))

    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["s.kv"]
