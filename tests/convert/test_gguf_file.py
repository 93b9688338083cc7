"""Files that are not, or not wholly, GGUF."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from onnx_genai.convert import import_gguf
from onnx_genai.convert.gguf_file import CHUNK_ELEMENTS, GgufFile
from onnx_genai.errors import GenAIError, NotFoundError, PackageError, UnsupportedError
from tests.convert.tiny import TINY, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", TINY["llama"]).read_bytes()


def at(content: bytes, offset: int, new: bytes) -> bytes:
    return content[:offset] + new + content[offset + len(new) :]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda b: b"", PackageError, "0 bytes are too few for a GGUF header"),
        (lambda b: b[:20], PackageError, "20 bytes are too few for a GGUF header"),
        (
            lambda b: b"PK\3\4" + b[4:],
            PackageError,
            r"begins with b'PK\\x03\\x04' at byte 0 where a GGUF file has b'GGUF'",
        ),
        (
            lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n",
            PackageError,
            "a Git LFS pointer of 71 bytes, not the model; fetch the real file with 'git lfs pull'",
        ),
        (lambda b: at(b, 4, struct.pack("<I", 1)), UnsupportedError, r"GGUF version 1 at byte 4 \(known: 2 and 3\)"),
        (lambda b: at(b, 4, struct.pack(">I", 3)), UnsupportedError, "a big-endian file"),
        (lambda b: at(b, 8, struct.pack("<Q", 1 << 60)), PackageError, "not a whole GGUF file"),
        (lambda b: at(b, 16, struct.pack("<Q", 1 << 60)), PackageError, "not a whole GGUF file"),
        (lambda b: at(b, 24, struct.pack("<Q", 1 << 40)), PackageError, "metadata key 0 has length 1099511627776"),
        (lambda b: b[:100], PackageError, r"the file ends inside .* at byte \d+ of 100"),
        (lambda b: b[: len(b) // 2], PackageError, r"tensor 'blk\.\d.*' ends at byte \d+, but the file has \d+ bytes"),
        (lambda b: b[:-1], PackageError, r"ends at byte \d+, but the file has \d+ bytes; it is truncated"),
    ],
)
def test_broken_file_is_an_error_that_names_place_and_value(
    change: Callable[[bytes], bytes], kind: type[Exception], said: str, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(whole))

    with pytest.raises(kind, match=said) as error:
        import_gguf(path, tmp_path / "out")
    assert str(path) in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nowhere\.gguf: no such file"):
        GgufFile(tmp_path / "nowhere.gguf")


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"give the path of a \.gguf file"):
        GgufFile(tmp_path)


def test_every_cut_of_the_header_is_an_error_of_ours(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    header = len(whole) - 60 * 1024
    for size in [*range(1, 400), *range(400, header, 97)]:
        path.write_bytes(whole[:size])
        with pytest.raises(GenAIError):
            GgufFile(path)


def test_random_changes_of_the_header_never_end_in_another_error(whole: bytes, tmp_path: Path) -> None:
    rng = random.Random(11)
    path = tmp_path / "model.gguf"
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(0, 3000)] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            import_gguf(path, tmp_path / "out", overwrite=True, max_context=64)
        except GenAIError:
            assert not list(tmp_path.glob(".*"))


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -5)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_int64("a.i64", -(1 << 60))
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "größer")
    writer.add_array("a.texts", ["x", "y"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GgufFile(path) as file:
        read = {key: value for key, value in file.metadata.items() if key.startswith("a.")}

    assert read == {
        "a.u8": 200,
        "a.i8": -5,
        "a.u16": 60000,
        "a.i16": -30000,
        "a.u64": 1 << 60,
        "a.i64": -(1 << 60),
        "a.f64": 0.1,
        "a.yes": True,
        "a.text": "größer",
        "a.texts": ["x", "y"],
        "a.numbers": [1, 2, 3],
        "a.flags": [True, False],
    }


def test_wrong_type_of_a_key_is_named_with_the_expected_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("llama.embedding_length", "wide")
    writer.add_bool("llama.block_count", True)
    writer.add_float32("llama.rope.freq_base", float("nan"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GgufFile(path) as file:
        with pytest.raises(PackageError, match=r"embedding_length is 'wide' \(str\); expected a whole number"):
            file.integer("llama.embedding_length")
        with pytest.raises(PackageError, match=r"block_count is True \(bool\); expected a whole number"):
            file.integer("llama.block_count")
        with pytest.raises(PackageError, match="freq_base is nan; expected a finite number"):
            file.real("llama.rope.freq_base")
        with pytest.raises(PackageError, match=r"'llama\.context_length' is missing; expected a whole"):
            file.integer("llama.context_length")


def test_rows_come_in_chunks_of_whole_heads(tmp_path: Path) -> None:
    columns = CHUNK_ELEMENTS // 8
    values = np.arange(24 * columns, dtype=np.float32).reshape(24, columns) % 251
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("big", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GgufFile(path) as file:
        sizes = [len(raw) for raw in file.chunks("big", unit=6)]
        joined = np.concatenate([file.floats(raw, file.tensor("big").type) for raw in file.chunks("big", 2, 20)])

    assert sizes == [6, 6, 6, 6]
    np.testing.assert_array_equal(joined, values[2:22])


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    bad = np.ones((96, 64), np.float32)
    bad[3, 5] = np.nan
    raw = {"blk.0.ffn_up.weight": (bad, gguf.GGMLQuantizationType.F32)}
    source = write_gguf(tmp_path / "model.gguf", TINY["llama"], raw=raw)  # type: ignore[arg-type]

    with pytest.raises(PackageError, match="1 values of type F32 are not finite"):
        import_gguf(source, tmp_path / "out")
