"""The command ``show``: facts of a package, as text and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.graph.native_cases import packed_mlp
from tests.graph.tiny import save
from tests.models.encoder_decoder import write_encoder_decoder


def test_show_prints_format_files_decoder_and_limits(run: Run, scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("Hello")

    ran = run("show", folder)

    lines = dict(line.split(": ", 1) for line in ran.out.splitlines() if ": " in line)
    assert (ran.code, ran.err) == (0, "")
    assert lines["model directory"] == str(folder)
    assert lines["format"] == "optimum"
    assert lines["model file"] == str(folder / "model.onnx")
    assert lines["tokenizer"] == str(folder / "tokenizer.json")
    assert lines["chat template"].startswith("default")
    assert (lines["metadata"], lines["genai config"], lines["speculator"]) == ("(none)", "(none)", "(none)")
    assert lines["decoder"]
    assert lines["  because"]
    assert lines["context limit"] == "4096 (from config.json max_position_embeddings)"
    assert lines["eos ids"].split()[0].isdigit()


def test_show_of_an_encoder_decoder_names_both_graphs(run: Run, tmp_path: Path) -> None:
    folder = write_encoder_decoder(tmp_path, "state_fixed")

    lines = run("show", folder).out.splitlines()
    facts = json.loads(run("show", folder, "--json").out)

    assert "decoder: cross (an encoder-decoder: the encoder runs once a request)" in lines
    assert f"encoder: {folder / 'encoder.onnx'}" in lines
    assert "  reads input_ids (int64), attention_mask (int32), always 5 tokens" in lines
    assert "largest batch: 4" in lines
    assert facts["encoder"]["width"] == 5
    assert facts["ports"]["encoder_hidden_states"] == "the encoder's encoder_outputs (float32)"


def test_show_given_json_prints_one_object(run: Run, scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("Hello")

    ran = run("show", folder, "--json")

    facts = json.loads(ran.out)
    assert facts["directory"] == str(folder)
    assert facts["context_limit"] == 4096
    assert facts["chat_template"]["names"] == ["default"]
    assert facts["eos_token_ids"]
    assert set(facts["ports"]) >= {"input_ids", "logits"}
    assert facts["warnings"] == []


@pytest.mark.parametrize(
    ("name", "content", "source"),
    [
        ("genai_config.json", {"model": {"draft": {"filename": "d.onnx"}}}, "genai_config.json model.draft"),
        ("genai_config.json", {"speculative": {"num_tokens": 4}}, "genai_config.json speculative"),
        ("inference_metadata.json", {"speculative": {"proposal_type": "mtp"}}, "inference_metadata.json speculative"),
        ("inference_metadata.json", {"model": {"speculative": {"k": 4}}}, "inference_metadata.json model.speculative"),
        ("genai_config.json", {}, None),
        ("inference_metadata.json", {"strategy": {"kind": "autoregressive"}}, None),
    ],
)
def test_show_tells_whether_the_package_describes_a_speculator(
    run: Run,
    scripted_package: Callable[..., Path],
    tmp_path: Path,
    name: str,
    content: dict[str, dict[str, object]],
    source: str | None,
) -> None:
    folder = tmp_path / "package"
    shutil.copytree(scripted_package("Hello"), folder)
    if name == "genai_config.json":
        model = {"decoder": {"filename": "model.onnx"}, **content.get("model", {})}
        content = {**content, "model": model}
    (folder / name).write_text(json.dumps(content), encoding="utf-8")

    lines = run("show", folder).out.splitlines()

    facts = json.loads(run("show", folder, "--json").out)
    assert facts["speculator"] == source
    key, label = ("genai_config", "genai config") if name == "genai_config.json" else ("metadata", "metadata")
    assert facts[key] == str(folder / name)
    assert f"{label}: {folder / name}" in lines
    detected = f"speculator: detected (from {source}); not used: nothing is drafted"
    assert ("speculator: (none)" if source is None else detected) in lines
    assert any("speculative decoding is described but not used" in line for line in lines) == (source is not None)


def test_show_given_a_file_in_the_folder_shows_the_folder(run: Run, scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("Hello")

    assert run("show", folder / "config.json").out == run("show", folder).out


@pytest.mark.parametrize("style", ["gqa", "static", "packed", "merged"])
def test_show_given_each_cache_style_names_decoder_and_kv(
    run: Run, checksum_package: Callable[..., Path], style: str
) -> None:
    facts = json.loads(run("show", checksum_package(style), "--json").out)

    paged = style not in {"packed", "merged"}
    assert facts["decoder"].split()[0] == ("paged" if paged else "copy")
    assert facts["decoder_reason"]
    assert facts["kv"]["tensors"] > 0
    assert bool(facts["coverage"]["replaced"]) == paged
    assert bool(facts["coverage"]["problems"]) != paged


def test_show_given_a_graph_that_is_not_paged_says_why(run: Run, checksum_package: Callable[..., Path]) -> None:
    lines = run("show", checksum_package("concat")).out.splitlines()

    assert "attention nodes as PagedAttention: 0 of 0" in lines
    assert any(line.startswith("  not paged: past_key_values.0.key is read by Concat") for line in lines)


def test_show_given_a_paged_graph_names_layers_and_blocks(run: Run, checksum_package: Callable[..., Path]) -> None:
    lines = run("show", checksum_package("gqa")).out.splitlines()

    assert "attention nodes as PagedAttention: 2 of 2" in lines
    assert "kv cache: 2 layers of float32, 2 heads, keys of 8, values of 8, blocks of 16" in lines


def test_show_given_quantized_products_says_whose_kernels_run_them(run: Run, tmp_path: Path) -> None:
    save(packed_mlp(), tmp_path)

    lines = run("show", tmp_path).out.splitlines()
    facts = json.loads(run("show", tmp_path, "--json").out)

    assert lines[lines.index("backend: native") + 1] == (
        "  quantized products: 2 nodes, 2 in genai.runtime (4 bits, block 16: 2), as 2 nodes, 1 with SwiGLU"
    )
    assert "operators of genai.runtime: MatMulNBits 2" in lines
    assert "operators of onnxruntime: Gather 1, Slice 1" in lines
    assert facts["backend"] == "native"
    assert facts["operators"] == {"genai.runtime": {"MatMulNBits": 2}, "onnxruntime": {"Gather": 1, "Slice": 1}}


def test_show_given_the_backend_ort_shows_the_graph_of_that(run: Run, tmp_path: Path) -> None:
    save(packed_mlp(), tmp_path)

    lines = run("show", tmp_path, "--backend", "ort").out.splitlines()

    assert lines[lines.index("backend: ort") + 1 :][:2] == [
        "  quantized products: 2 nodes, 0 in genai.runtime",
        "  left to onnxruntime: the backend is ort",
    ]
    assert not any(line.startswith("operators of genai.runtime") for line in lines)


def test_show_given_no_quantized_products_names_the_backend_only(
    run: Run, checksum_package: Callable[..., Path]
) -> None:
    lines = run("show", checksum_package("gqa")).out.splitlines()

    assert "backend: ort" in lines
    assert not any("quantized products" in line for line in lines)


def test_show_given_an_unknown_backend_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    ran = run("show", tmp_path, "--backend", "onnx")

    assert ran.code == 2
    assert "auto, ort, or native" in ran.err


def test_show_given_a_folder_without_a_model_names_what_is_missing(run: Run, tmp_path: Path) -> None:
    ran = run("show", tmp_path)

    assert (ran.code, ran.out) == (1, "")
    assert str(tmp_path) in ran.err
    assert ".onnx" in ran.err


@pytest.mark.parametrize("name", ["./missing", "/no/such/folder", "a/b/c"])
def test_show_given_a_missing_path_fetches_nothing(run: Run, name: str) -> None:
    ran = run("show", name)

    assert (ran.code, ran.out) == (1, "")
    assert f"{name} does not exist" in ran.err


def test_show_given_a_name_that_was_not_pulled_says_how_to_fetch_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_genai.package import hub

    monkeypatch.setattr(hub, "resolve", lambda _name: None)

    ran = run("show", "owner/name")

    assert ran.code == 1
    assert "onnx-genai pull owner/name" in ran.err


def test_show_lists_ports_as_a_table_and_marks_those_that_were_added(
    run: Run, checksum_package: Callable[..., Path]
) -> None:
    lines = run("show", checksum_package("gqa")).out.splitlines()

    start = lines.index("inputs and outputs:") + 1
    ports = [line for line in lines[start:] if line.startswith("  ")]
    assert ports[0].split() == ["input_ids:", "input_ids", "int64,", "rank", "2"]
    added = [line for line in ports if line.endswith("added for paged KV")]
    assert {line.split()[0] for line in added} >= {"block_table:", "past_seqlens:"}
    assert len({line.index(line.split()[1], 4) for line in ports[1:]}) == 1  # one column below the other
