"""Packages that others made: each one is either a single-graph decoder or refused by its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_genai.errors import GenAIError, PackageError, UnsupportedError
from onnx_genai.graph import CacheStyle, resolve
from onnx_genai.package import read

# folder -> (cache style of the graph as it is, vocabulary, context limit, EOS ids)
DECODERS = {
    "packages/tiny-llm": (CacheStyle.COPY, 32, 16, (3,)),
    "packages/tiny-llm-scatter": (CacheStyle.SLOT_STATIC, 32, 16, (3,)),
    "packages/tiny-llm-sharedbuffer": (CacheStyle.SLOT_GQA, 32, 16, (3,)),
    "packages/tiny-mtp-full": (CacheStyle.COPY, 32, 16, (3,)),
    "packages/tiny-gemma4-assistant": (CacheStyle.COPY, 32, 0, (3,)),
    "packages/tiny-native-engine": (CacheStyle.COPY, 2, 0, (3,)),
    "packages/tiny-native-cuda-engine": (CacheStyle.COPY, 2, 0, (3,)),
    "packages/tiny-native-scalar-gqa": (CacheStyle.SLOT_GQA, 4, 32, (3,)),
    "packages-workflow/tiny-llm-scatter": (CacheStyle.SLOT_STATIC, 32, 16, (3,)),
    "packages-workflow/tiny-reasoning": (CacheStyle.COPY, 32, 16, (3,)),
    "packages-workflow/tiny-deepseek-v2-qmoe-attention": (CacheStyle.COPY, 16, 16, ()),
    "packages-workflow/tiny-orphan-output-decoder": (CacheStyle.NONE, 16, 0, ()),
    "ort-genai/models/engine/dummy-decoder": (CacheStyle.COPY, 32, 128, (1,)),
    "ort-genai/models/hf-internal-testing/tiny-qwen35-cuda": (CacheStyle.SLOT_GQA, 1000, 128, (2,)),
    "ort-genai/models/hf-internal-testing/tiny-random-gpt2-fp32": (CacheStyle.COPY, 1000, 512, (98, 50256)),
    "ort-genai/models/engine/synthetic-paged": (CacheStyle.PAGED, 64, 128, (1,)),
}

PAGED = {
    "ort-genai/models/engine/synthetic-paged",
    "packages/tiny-llm",
    "packages/tiny-llm-scatter",
    "packages/tiny-llm-sharedbuffer",
    "packages/tiny-mtp-full",
    "packages-workflow/tiny-llm-scatter",
    "packages-workflow/tiny-reasoning",
    "ort-genai/models/hf-internal-testing/tiny-qwen35-cuda",
}

# Decoders that take embeddings, with the graph that makes them -> vocabulary
JOINED = {
    "packages/tiny-gemma4-vlm": 8,
    "ort-genai/models/multimodal-decoder-no-input-ids": 10,
    "ort-genai/models/multimodal-decoder-with-input-ids": 10,
    "ort-genai/models/phi3-v": 32064,
    "ort-genai/models/qwen2-5-vl": 152064,
    "ort-genai/models/qwen3-vl": 151936,
}

# Encoder-decoders -> rows and source tokens that their graphs fix
ENCODER_DECODERS = {"ort-genai/models/marian-batch": (2, 2), "ort-genai/models/marian-batch-beams": (4, 3)}

VISION, DIFFUSION, SPEECH = "a vision-language pipeline", "a diffusion pipeline", "a speech synthesis pipeline"
ENCODER_DECODER, WORKFLOW = "an encoder-decoder pipeline", "a workflow package"

REFUSED = {
    "packages/tiny-codec": "a single-pass pipeline",
    "packages/tiny-diffusion": DIFFUSION,
    "packages/tiny-eagle3": "a decoder on embeddings",
    "packages/tiny-glm52-qmoe-indexshare": "operator IndexShare of the domain 'pkg.nxrt'",
    "packages/tiny-masked-diffusion": "a masked-diffusion language model",
    "packages/tiny-native-sub4-engine": "operator BlockQuantizedMatMul of the domain 'pkg.nxrt'",
    "packages/tiny-tts": SPEECH,
    "packages/tiny-tts-nested": SPEECH,
    "packages/tiny-tts-nested-prefill": SPEECH,
    "packages/tiny-txt2img": DIFFUSION,
    "packages/tiny-vlm-image-input": VISION,
    "packages/tiny-whisper": ENCODER_DECODER,
    "packages-workflow/tiny-llm-scatter-workflow": WORKFLOW,
    "packages-workflow/comfyui_workflows/txt2img_sd15": WORKFLOW,
    "ort-genai/models/pipeline-model": "a decoder split into several graphs",
    "ort-genai/models/whisper": ENCODER_DECODER,
}

NO_PACKAGES = {
    "packages-workflow/tiny-fp8-kv": "several graphs (identity.onnx, scatter.onnx)",
    "ort-genai/models/gemma4": "dummy_text.onnx, which does not exist",
    "ort-genai/models/mistral3": "is no model package",
}


@pytest.mark.parametrize("name", DECODERS)
def test_single_graph_decoder_resolves(name: str, shared_cases: Path) -> None:
    style, vocab_size, limit, eos = DECODERS[name]

    package = read(shared_cases / name)
    contract = resolve(package, last_logits=False)

    assert (contract.cache, contract.vocab_size, contract.context_limit) == (style, vocab_size, limit)
    assert (resolve(package).cache is CacheStyle.PAGED) == (name in PAGED)
    assert package.eos_token_ids == eos
    assert package.warnings == ()


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_resolves_as_two_graphs(name: str, shared_cases: Path) -> None:
    batch, width = ENCODER_DECODERS[name]

    package = read(shared_cases / name)
    contract = resolve(package)

    assert (contract.cache, contract.vocab_size, contract.context_limit) == (CacheStyle.CROSS, 32001, 768)
    assert contract.max_batch == batch
    assert contract.encoder is not None
    assert contract.encoder.width == width
    assert [(cross.input, cross.source, cross.name) for cross in contract.cross] == [
        ("encoder_hidden_states", "encoder", "encoder_outputs"),
        ("encoder_attention_mask", "request", ""),
    ]
    assert [(pair.past, pair.present, pair.dims) for pair in contract.states] == [
        ("rnn_states_prev", "rnn_states", (3, batch, 512))
    ]
    assert package.encoder is not None
    assert (package.encoder.start_token_id, package.encoder.end_token_id) == (32000, 0)


@pytest.mark.parametrize("name", JOINED)
def test_decoder_on_embeddings_resolves_as_one_graph(name: str, shared_cases: Path) -> None:
    package = read(shared_cases / name)
    contract = resolve(package)

    assert contract.vocab_size == JOINED[name]
    assert (contract.input_ids.name, contract.input_ids.rank) == ("input_ids", 2)
    assert contract.position_ids is None or contract.position_ids.rank == 2
    assert contract.model_bytes
    assert len(package.warnings) == 1
    assert "not used: vision" in package.warnings[0]


@pytest.mark.parametrize("name", REFUSED)
def test_other_package_is_refused_by_its_kind(name: str, shared_cases: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve(read(shared_cases / name))

    assert REFUSED[name] in str(caught.value)
    assert name.rpartition("/")[2] in str(caught.value)


@pytest.mark.parametrize("name", NO_PACKAGES)
def test_folder_that_is_no_package_says_so(name: str, shared_cases: Path) -> None:
    with pytest.raises(PackageError) as caught:
        resolve(read(shared_cases / name))

    assert NO_PACKAGES[name] in str(caught.value)


def test_every_folder_of_the_cases_is_in_a_table(shared_cases: Path) -> None:
    """A folder that is added later must not pass unseen; workflow packages are covered by the next test."""
    tables = DECODERS.keys() | JOINED.keys() | ENCODER_DECODERS.keys() | REFUSED.keys() | NO_PACKAGES.keys()

    unseen = {
        str(path.parent.relative_to(shared_cases))
        for pattern in ("inference_metadata.*", "genai_config.json", "model.onnx", "tokenizer.json")
        for path in shared_cases.rglob(pattern)
        if not any(
            str(parent.relative_to(shared_cases)) in tables
            for parent in path.parents[:4]
            if parent != shared_cases and shared_cases in parent.parents
        )
        and "onnx_genai_workflows" not in path.parts
    }

    assert unseen == set()


def test_workflow_packages_are_refused_as_such(shared_cases: Path) -> None:
    folders = sorted((shared_cases / "packages-workflow" / "onnx_genai_workflows").glob("*/inference_metadata.yaml"))

    for path in folders:
        with pytest.raises(UnsupportedError, match="a workflow package"):
            read(path)

    assert len(folders) > 10


@pytest.mark.parametrize(
    ("name", "text"),
    [("invalid_metadata", "expected a list of texts"), ("malformed_metadata", "is not valid YAML")],
)
def test_bad_metadata_is_a_package_error(name: str, text: str, shared_cases: Path, tmp_path: Path) -> None:
    source = shared_cases / "packages" / f"{name}.yaml"
    (tmp_path / "inference_metadata.yaml").write_bytes(source.read_bytes())

    with pytest.raises(PackageError, match=r"inference_metadata\.yaml") as caught:
        read(tmp_path)

    assert text in str(caught.value)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_sample_metadata_is_read_up_to_the_missing_graph(suffix: str, shared_cases: Path, tmp_path: Path) -> None:
    source = shared_cases / "packages" / f"sample_metadata.{suffix}"
    (tmp_path / f"inference_metadata.{suffix}").write_bytes(source.read_bytes())

    with pytest.raises(GenAIError, match=r"has no \.onnx file"):
        read(tmp_path)
