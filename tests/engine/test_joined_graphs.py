"""Packages whose decoder takes embeddings, which a graph of its own makes: they answer text as one graph does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from onnx_genai import LLM, SamplingParams, errors
from onnx_genai.package import read
from tests.models.checksum import checksum_generate
from tests.models.joined import IMAGE_ID, Split, split_package
from tests.models.packages import Format, write_checksum_package

pytestmark = pytest.mark.boundary

NEW_TOKENS = 12
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
PROMPTS = [[5], [IMAGE_ID, 7], [1, 2, IMAGE_ID, 4, 5, 6, 7], [(7 * place) % 97 for place in range(40)]]

CASES = {
    "scatter": ("gqa", Split()),
    "where": ("gqa", Split(features="where")),
    "sum of empty features": ("gqa", Split(features="sum")),
    "no features": ("concat", Split(features="none")),
    "int32 ids before": ("concat", Split(ids=TensorProto.INT32)),
    "ids in both": ("concat", Split(keeps_ids=True)),
    "other ids in both": ("concat", Split(keeps_ids=True, ids=TensorProto.INT32)),
    "axes first": ("concat", Split(axes="first")),
    "axes last": ("gqa_positions", Split(axes="last")),
    "older opset": ("concat", Split(opset=14)),
    "packed": ("packed", Split(features="none")),
}


def package(folder: Path, style: str, split: Split) -> Path:
    """A split package in its own folder."""
    form: Format = "genai" if split.layout == "genai" else "optimum"
    return split_package(write_checksum_package(folder, style, format=form), split)


@pytest.mark.parametrize("name", CASES)
def test_split_package_says_what_the_whole_one_says(name: str, tmp_path: Path) -> None:
    style, split = CASES[name]

    with LLM(package(tmp_path / "model", style, split), threads=1) as llm:
        alone = [list(llm.generate(prompt, GREEDY).token_ids) for prompt in PROMPTS]
        together = [list(result.token_ids) for result in llm.generate(PROMPTS, GREEDY)]

    assert alone == together == [checksum_generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


def test_files_alone_are_found(tmp_path: Path) -> None:
    folder = package(tmp_path / "model", "concat", Split(layout="files"))

    with LLM(folder, threads=1) as llm:
        found = list(llm.generate(PROMPTS[2], GREEDY).token_ids)

    assert found == checksum_generate(PROMPTS[2], NEW_TOKENS)
    read_package = read(folder)
    assert read_package.embedding is not None
    assert read_package.embedding.path.name == "embed_tokens.onnx"


def test_weights_in_several_files_and_folders(tmp_path: Path) -> None:
    """Weights of the embedding, moved to a file beside it in another folder than the decoder's."""
    folder = package(tmp_path / "model", "concat", Split(features="none"))
    (folder / "parts").mkdir()
    table = np.zeros((97, 2000), dtype=np.float32)
    model = onnx.load(folder / "embedding.onnx")
    # Adds a row of a table of zeros to the number, so that the table is needed.
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2], dtype=np.int64), "columns"))
    model.graph.node.insert(2, onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"]))
    model.graph.node.insert(3, onnx.helper.make_node("ReduceSum", ["rows", "columns"], ["sums"], keepdims=1))
    model.graph.node.insert(4, onnx.helper.make_node("Add", ["text", "sums"], ["both"]))
    model.graph.node[-1].input[0] = "both"
    onnx.save(model, folder / "parts" / "embedding.onnx", save_as_external_data=True, location="embedding.data")
    (folder / "embedding.onnx").unlink()
    config = folder / "genai_config.json"
    config.write_text(config.read_text(encoding="utf-8").replace("embedding.onnx", "parts/embedding.onnx"), "utf-8")

    with LLM(folder, threads=1) as llm:
        assert list(llm.generate([5, 6], GREEDY).token_ids) == checksum_generate([5, 6], NEW_TOKENS)

    (folder / "parts" / "embedding.data").unlink()
    with pytest.raises(errors.PackageError, match=r"embedding\.data, which does not exist"):
        LLM(folder)


def test_graphs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = package(tmp_path / "other names", "concat", Split(features="none"))
    model = onnx.load(folder / "embedding.onnx")
    model.graph.output[0].name = model.graph.node[-1].output[0] = "vectors"
    onnx.save(model, folder / "embedding.onnx")
    with pytest.raises(errors.PackageError, match=r"takes none of what embedding\.onnx makes \(vectors\)"):
        LLM(folder)

    folder = package(tmp_path / "missing", "concat", Split(features="none"))
    (folder / "embedding.onnx").unlink()
    with pytest.raises(errors.PackageError, match=r"model\.embedding\.filename"):
        LLM(folder)

    folder = package(tmp_path / "opset", "concat_no_mask", Split(opset=19))
    with pytest.raises(errors.UnsupportedError, match="opset 17 and has the operator ReduceMean, which is another one"):
        LLM(folder)


def test_pipeline_of_native_metadata_equals_its_graphs_run_by_hand(shared_cases: Path) -> None:
    folder = shared_cases / "packages" / "tiny-gemma4-vlm"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    embedding, decoder = (ort.InferenceSession(folder / f"{name}.onnx") for name in ("embedding", "decoder"))
    none = np.zeros((1, 1, 0, 4), dtype=np.float32)
    ids = [3, 1, 6]
    for _ in range(5):
        features = np.zeros((1, 1, 4), dtype=np.float32)
        (vectors,) = embedding.run(None, {"input_ids": np.array([ids]), "image_features": features})
        past = {f"past_key_values.0.{part}": none for part in ("key", "value")}
        logits = decoder.run(["logits"], {"inputs_embeds": vectors, **past})[0]
        ids.append(int(logits[0, -1].argmax()))

    with LLM(folder, threads=1) as llm:
        found = llm.generate(ids[:3], SamplingParams(max_new_tokens=5, temperature=0, ignore_eos=True))

    assert list(found.token_ids) == ids[3:]


def test_warning_says_that_images_are_not_seen(tmp_path: Path) -> None:
    folder = package(tmp_path / "model", "gqa", Split())

    (warning,) = read(folder).warnings

    assert "text alone; not used: vision" in warning
