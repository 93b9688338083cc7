"""Reading the files of an encoder package: what is taken, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnx_genai.engine import task_of
from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph.encoder import resolve_encoder
from onnx_genai.package import read
from onnx_genai.package.encoder import read_encoder
from onnx_genai.pipelines import model_kind
from tests.embedding.conftest import WritePackage
from tests.models.encoder import WIDTH, EncoderFiles, EncoderStyle


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_all_files_are_read(package: WritePackage) -> None:
    files = EncoderFiles(prompts={"query": "q: "}, default_prompt_name="query", max_seq_length=20)
    found = read_encoder(package(files=files))

    assert found.pooling == ("mean",)
    assert found.pooling_source == "1_Pooling/config.json"
    assert found.after_pooling == ("normalize",)
    assert found.has_modules
    assert (found.prompts, found.default_prompt_name) == ({"query": "q: "}, "query")
    assert (found.limit.tokens, found.limit.source) == (20, "sentence_bert_config.json max_seq_length")
    assert found.hard_limit is not None
    assert found.hard_limit.tokens == 64


def test_bare_folder_says_nothing(package: WritePackage) -> None:
    found = read_encoder(package(files=EncoderFiles(modules=None)))

    assert (found.pooling, found.after_pooling, found.has_modules, found.prompts) == ((), (), False, {})
    assert found.limit is not None
    # The tokenizer's "no limit" of 10**30 is no limit.
    assert found.limit.source == "config.json max_position_embeddings"


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx", "model_fp16.onnx"])
def test_graph_is_found_where_exporters_put_it(package: WritePackage, graph: str) -> None:
    folder = package(graph=graph)

    assert read_encoder(folder).package.model_path == folder / graph


def test_whole_graph_is_preferred_and_others_can_be_named(package: WritePackage) -> None:
    folder = package(graph="onnx/model.onnx")
    (folder / "onnx" / "model_q4.onnx").write_bytes((folder / "onnx" / "model.onnx").read_bytes())

    assert read_encoder(folder).package.variant == "base"
    assert read_encoder(folder, variant="q4").package.variant == "q4"
    assert read_encoder(folder / "onnx" / "model_q4.onnx").package.model_path.name == "model_q4.onnx"
    assert read(folder).variant == "q4"  # a language model is bound by memory


def test_pooling_may_be_written_as_a_word(package: WritePackage) -> None:
    files = EncoderFiles(pooling={"pooling_mode": ["lasttoken"], "include_prompt": False})
    found = read_encoder(package(files=files))

    assert found.pooling == ("last",)
    assert not found.pools_prompt


def test_positions_behind_padding_lower_the_limit(package: WritePackage) -> None:
    config = {"model_type": "xlm-roberta", "pad_token_id": 1, "max_position_embeddings": 514}
    found = read_encoder(package(files=EncoderFiles(config=config)))

    assert found.limit is not None
    assert found.limit.tokens == 512


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("modules.json", {}, PackageError, r"modules\.json: expected a list of modules"),
        ("modules.json", [{"path": ""}], PackageError, r"entry 0 is .*; expected an object with 'type'"),
        ("modules.json", [], UnsupportedError, "does not begin with a Transformer"),
        (
            "modules.json",
            [{"type": "x.Transformer", "path": ""}, {"type": "x.LSTM", "path": "1"}],
            UnsupportedError,
            "has the module 'LSTM', which this version does not know",
        ),
        (
            "modules.json",
            [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "../1"}],
            PackageError,
            "leaves the package folder",
        ),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": "yes"}, PackageError, "expected true or false"),
        ("1_Pooling/config.json", {}, UnsupportedError, r"asks for the pooling \(none\)"),
        ("1_Pooling/config.json", {"pooling_mode_median": True}, UnsupportedError, "the pooling pooling_mode_median"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, UnsupportedError, "the pooling median"),
        ("1_Pooling/config.json", {"pooling_mode": 3}, PackageError, "expected text or a list of texts"),
        ("config_sentence_transformers.json", {"prompts": []}, PackageError, "expected an object"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "a"},
            PackageError,
            "expected one of the prompts",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "a"}, PackageError, "expected a whole number"),
    ],
)
def test_wrong_file_is_an_error_that_names_it(
    package: WritePackage, name: str, value: Any, error: type[Exception], text: str
) -> None:
    folder = package()
    write(folder / name, value)

    with pytest.raises(error, match=text):
        read_encoder(folder)


def test_missing_parts_are_named(package: WritePackage) -> None:
    folder = package(files=EncoderFiles(modules=("Transformer", "Pooling", "Dense")))
    write(folder / "2_Dense" / "config.json", {"activation_function": "torch.nn.Tanh"})
    with pytest.raises(UnsupportedError, match=r"2_Dense: has no model\.safetensors"):
        read_encoder(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(PackageError, match=r"1_Pooling/config\.json: is missing"):
        read_encoder(folder)


@pytest.mark.parametrize(
    ("style", "output", "is_pooled"),
    [
        (EncoderStyle(), "last_hidden_state", False),
        (EncoderStyle(output="token_embeddings"), "token_embeddings", False),
        (EncoderStyle(extra_outputs=("sentence_embedding",)), "sentence_embedding", True),
    ],
)
def test_output_is_recognised_by_its_role(
    package: WritePackage, style: EncoderStyle, output: str, is_pooled: bool
) -> None:
    contract = resolve_encoder(read_encoder(package(style)))

    assert (contract.output, contract.is_pooled, contract.width) == (output, is_pooled, WIDTH)
    assert contract.task == "embed"


def test_tokens_are_taken_when_they_are_preferred(package: WritePackage) -> None:
    source = read_encoder(package(EncoderStyle(extra_outputs=("sentence_embedding",))))

    assert resolve_encoder(source, prefer_tokens=True).output == "last_hidden_state"


def test_width_may_come_from_the_config(package: WritePackage) -> None:
    folder = package()
    model = onnx.load(folder / "model.onnx")
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "hidden"
    onnx.save(model, folder / "model.onnx")

    assert resolve_encoder(read_encoder(folder)).width == WIDTH


def test_input_without_a_role_is_refused(package: WritePackage) -> None:
    folder = package()
    model = onnx.load(folder / "model.onnx")
    model.graph.input.append(onnx.helper.make_tensor_value_info("bbox", onnx.TensorProto.INT64, ["b", "s", 4]))
    onnx.save(model, folder / "model.onnx")

    with pytest.raises(PackageError, match=r"input bbox .* has no known role"):
        resolve_encoder(read_encoder(folder))


def test_kinds_are_told_apart_without_loading(package: WritePackage, scripted_package: Any, tmp_path: Path) -> None:
    reranker = package(EncoderStyle(output="logits"))
    language = scripted_package("Hello.")

    assert model_kind(package()) == "embedding"
    assert model_kind(reranker) == "reranker"
    assert model_kind(language) == "text"
    assert model_kind(tmp_path / "nothing") == "text"
    assert task_of(read(language)) is None
