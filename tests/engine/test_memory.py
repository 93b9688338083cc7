"""How the limits are divided among the tiers of KV."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from onnx_genai.engine import EngineOptions, KvMemory, plan_memory
from onnx_genai.errors import InvalidArgumentError

GIB = 1024**3
MIB = 1024**2


def plan(*, block_bytes: int = 4096, context_bytes: int = 0, available: int = 16 * GIB, **options: object) -> KvMemory:
    return plan_memory(
        EngineOptions(**options),  # type: ignore[arg-type]
        block_bytes=block_bytes,
        context_bytes=context_bytes,
        available_bytes=available,
        free_disk_bytes=lambda folder: 100 * GIB,
    )


@pytest.mark.parametrize(
    ("options", "hot", "warm"),
    [
        ({}, GIB, 7 * GIB),
        ({"context_bytes": GIB}, 2 * GIB, 6 * GIB),
        ({"context_bytes": 40 * GIB}, 4 * GIB, 4 * GIB),
        ({"available": GIB}, GIB // 2, 0),
        ({"host_ram_limit": "64MiB"}, 64 * MIB, 0),
        ({"host_ram_limit": 0.75}, GIB, 11 * GIB),
        ({"vram_limit": "64MiB"}, 64 * MIB, 8 * GIB - 64 * MIB),
        ({"vram_limit": "64MiB", "host_ram_limit": "96MiB"}, 64 * MIB, 32 * MIB),
        ({"vram_limit": "64MiB", "host_ram_limit": "32MiB"}, 32 * MIB, 0),
        ({"block_bytes": 0}, 8 * GIB, 0),
        ({"block_bytes": 0, "host_ram_limit": 1000}, 1000, 0),
        ({"block_bytes": 0, "vram_limit": 1000}, 1000, 0),
        ({"ep": "cuda"}, 8 * GIB, 4 * GIB),
        ({"ep": "cuda", "vram_limit": "3GiB", "host_ram_limit": "1GiB"}, 3 * GIB, GIB),
        ({"ep": "cuda", "block_bytes": 0}, 8 * GIB, 0),
        ({"vram_limit": 2**64 - 1, "host_ram_limit": 2**64 - 1}, 2**63 - 1, 0),
    ],
)
def test_limits_are_divided_among_hot_and_warm(options: dict[str, object], hot: int, warm: int) -> None:
    memory = plan(**options)  # type: ignore[arg-type]

    assert (memory.hot_bytes, memory.warm_bytes, memory.cold_bytes) == (hot, warm, 0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"host_ram_limit": 0}, "host_ram_limit is 0"),
        ({"host_ram_limit": "0.0"}, "host_ram_limit is '0.0'"),
        ({"vram_limit": 0}, "vram_limit is 0"),
        ({"ep": "cuda", "vram_limit": 0}, "vram_limit is 0"),
    ],
)
def test_limit_that_leaves_nothing_is_refused_by_its_name(options: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}, which leaves no memory for KV"):
        plan(**options)  # type: ignore[arg-type]


def test_limit_below_one_block_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"vram_limit is 4000, .* at least 4096 bytes"):
        plan(vram_limit=4000)
    with pytest.raises(InvalidArgumentError, match=r"host_ram_limit is '1KiB', .* at least 4096 bytes"):
        plan(host_ram_limit="1KiB")
    assert plan(vram_limit=4096).hot_bytes == 4096


def test_source_names_the_limit_that_bounds_the_hot_tier() -> None:
    assert plan(vram_limit="64MiB").source == "vram_limit=64MiB"
    assert plan(vram_limit="64MiB", host_ram_limit="32MiB").source == "host_ram_limit=32MiB"
    assert plan(block_bytes=0).source == "host_ram_limit=auto"


@pytest.mark.parametrize(
    ("limit", "size"),
    [(None, 0), (0, 0), ("0.0", 0), ("3GiB", 3 * GIB), (0.5, 50 * GIB), ("auto", 25 * GIB)],
)
def test_disk_limit_is_off_or_a_size_or_a_part_of_the_free_space(
    limit: str | int | float | None, size: int, tmp_path: Path
) -> None:
    memory = plan(disk_limit=limit, disk_folder=None if limit is None else tmp_path / "new" / "folder")

    assert memory.cold_bytes == size
    assert (memory.cold_folder is not None) == (size > 0)
    assert (tmp_path / "new" / "folder").is_dir() == (size > 0)


def test_decoder_without_tiers_gets_no_disk(tmp_path: Path) -> None:
    assert plan(block_bytes=0, disk_limit="1GiB", disk_folder=tmp_path).cold_bytes == 0


def test_default_disk_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = plan(disk_limit="1GiB").cold_folder

    assert folder is not None
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert plan(disk_limit="1GiB").cold_folder == folder


def test_default_disk_folder_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"onnx-genai-{os.getuid()}").mkdir(mode=0o755)

    with pytest.raises(InvalidArgumentError, match="only this user may read; set disk_folder"):
        plan(disk_limit="1GiB")


def test_disk_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")

    with pytest.raises(InvalidArgumentError, match=r"disk_folder is .*file', which cannot be made"):
        plan(disk_limit="1GiB", disk_folder=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decoder": "fast"}, "decoder is 'fast'; allowed: auto, paged, slot, copy"),
        ({"kv_dtype": "int4"}, "kv_dtype is 'int4'; allowed: auto, float32"),
        ({"kv_dtype": None}, "kv_dtype is None"),
        ({"prefix_cache": 1}, "prefix_cache is 1; allowed: True or False"),
        ({"disk_limit": "1TiB"}, "disk_limit is '1TiB'"),
        ({"disk_limit": True}, "disk_limit is True"),
        ({"disk_folder": "x"}, "disk_limit is None"),
        ({"disk_limit": 1, "disk_folder": 3}, "disk_folder is 3"),
        ({"vram_limit": "1G"}, "vram_limit is '1G'"),
        ({"ep": "cuda", "host_ram_limit": -1}, "host_ram_limit is -1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_prefill_tokens_while_decoding": 0}, "max_prefill_tokens_while_decoding is 0"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        EngineOptions(**options)  # type: ignore[arg-type]
