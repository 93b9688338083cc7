"""Which files of a hub repository are fetched."""

from __future__ import annotations

import pytest

from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError
from onnx_genai.package.repository import RepositoryFile, select_files


def chosen(names: list[str], variant: str | None = None) -> tuple[list[str], str]:
    files, folder = select_files("owner/model", [RepositoryFile(name=name, size=1) for name in names], variant)
    return [file.name for file in files], folder


ONNX_COMMUNITY = [
    ".gitattributes",
    "README.md",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/model_bnb4.onnx",
    "onnx/model_fp16.onnx",
    "onnx/model_fp16.onnx_data",
    "onnx/model_int8.onnx",
    "onnx/model_q4.onnx",
    "onnx/model_q4.onnx_data",
    "onnx/model_q4f16.onnx",
    "onnx/model_quantized.onnx",
]
COMPANIONS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]

GENAI = [
    "README.md",
    "config.json",
    "cpu_and_mobile/cpu-int4-rtn-block-32/genai_config.json",
    "cpu_and_mobile/cpu-int4-rtn-block-32/model.onnx",
    "cpu_and_mobile/cpu-int4-rtn-block-32/model.onnx.data",
    "cpu_and_mobile/cpu-int4-rtn-block-32/tokenizer.json",
    "cuda/cuda-fp16/genai_config.json",
    "cuda/cuda-fp16/model.onnx",
    "cuda/cuda-fp16/model.onnx.data",
]


@pytest.mark.parametrize(
    ("variant", "graphs"),
    [
        (None, ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]),
        ("q4", ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]),
        ("fp32", ["onnx/model.onnx", "onnx/model.onnx_data"]),
        ("fp16", ["onnx/model_fp16.onnx", "onnx/model_fp16.onnx_data"]),
        ("q8", ["onnx/model_quantized.onnx"]),
        ("q4f16", ["onnx/model_q4f16.onnx"]),
        ("model_int8.onnx", ["onnx/model_int8.onnx"]),
    ],
)
def test_graph_of_the_variant_with_its_data_and_companions(variant: str | None, graphs: list[str]) -> None:
    assert chosen(ONNX_COMMUNITY, variant) == (COMPANIONS + graphs, "")


def test_preference_goes_on_where_the_best_is_missing() -> None:
    names = [name for name in ONNX_COMMUNITY if "q4" not in name and name != "onnx/model.onnx"]

    assert chosen(names)[0][-1] == "onnx/model_quantized.onnx"


def test_data_in_several_files_is_all_taken() -> None:
    names = ["model.onnx", "model.onnx_data", "model.onnx_data_1", "model.onnx_data_12", "model_q4f16.onnx_data"]

    assert chosen(names)[0] == ["model.onnx", "model.onnx_data", "model.onnx_data_1", "model.onnx_data_12"]


def test_merged_decoder_is_a_whole_model() -> None:
    names = ["config.json", "onnx/decoder_model_merged.onnx", "onnx/decoder_model_merged_quantized.onnx"]

    assert chosen(names)[0] == ["config.json", "onnx/decoder_model_merged.onnx"]


@pytest.mark.parametrize(("variant", "kinds"), [(None, ("_q4", "_q4")), ("fp16", ("_fp16", "_q4")), ("fp32", ("", ""))])
def test_decoder_comes_with_the_graph_of_its_embeddings(variant: str | None, kinds: tuple[str, str]) -> None:
    names = [
        "onnx/vision_encoder_q4.onnx",
        *(f"onnx/decoder_model_merged{kind}.onnx" for kind in ("", "_fp16", "_q4")),
        *(f"onnx/embed_tokens{kind}.onnx{data}" for kind in ("", "_q4") for data in ("", "_data")),
    ]

    embedding = f"onnx/embed_tokens{kinds[1]}.onnx"
    wanted = {f"onnx/decoder_model_merged{kinds[0]}.onnx", embedding, f"{embedding}_data"}
    assert set(chosen(names, variant)[0]) == wanted


@pytest.mark.parametrize(("variant", "kinds"), [(None, ("_q4", "_q4")), ("fp16", ("_fp16", "_q4")), ("fp32", ("", ""))])
def test_decoder_comes_with_its_encoder(variant: str | None, kinds: tuple[str, str]) -> None:
    names = [
        *(f"onnx/decoder_model_merged{kind}.onnx" for kind in ("", "_fp16", "_q4")),
        *(f"onnx/encoder_model{kind}.onnx" for kind in ("", "_q4")),
        "onnx/decoder_model.onnx",
        "onnx/decoder_with_past_model.onnx",
    ]

    wanted = {f"onnx/decoder_model_merged{kinds[0]}.onnx", f"onnx/encoder_model{kinds[1]}.onnx"}
    assert set(chosen(names, variant)[0]) == wanted
    with pytest.raises(UnsupportedError, match=r"made of several graphs \(encoder_model, encoder_model_q4\)"):
        chosen([*names, "preprocessor_config.json"], variant)


def test_only_graph_is_taken_whatever_its_name() -> None:
    assert chosen(["config.json", "weights/llm.onnx", "weights/llm.onnx.data"]) == (
        ["config.json", "weights/llm.onnx", "weights/llm.onnx.data"],
        "",
    )


def test_package_folder_for_a_cpu_is_preferred() -> None:
    files, folder = chosen(GENAI)

    assert folder == "cpu_and_mobile/cpu-int4-rtn-block-32"
    assert files == [name for name in GENAI if name.startswith("cpu_and_mobile")]


@pytest.mark.parametrize("variant", ["cuda", "cuda-fp16", "cuda/cuda-fp16", "CUDA"])
def test_package_folder_can_be_asked_for(variant: str) -> None:
    assert chosen(GENAI, variant)[1] == "cuda/cuda-fp16"


def test_package_at_the_root_takes_what_a_graph_needs() -> None:
    names = ["inference_metadata.yaml", "model.onnx", "model.onnx.data", "tokenizer.json", "model.safetensors"]

    assert chosen([*names, "README.md"]) == (names[:4], "")


@pytest.mark.parametrize(
    ("names", "variant", "kind", "said"),
    [
        (ONNX_COMMUNITY, "int3", NotFoundError, "has no variant 'int3'; it has base, bnb4, fp16, int8, q4"),
        (
            GENAI,
            "fpga",
            NotFoundError,
            r"variant 'fpga' fits 0 of its folders; it has cpu_and_mobile/.*, cuda/cuda-fp16",
        ),
        (GENAI, "cu", NotFoundError, None),
        (["model.safetensors"], None, NotFoundError, r"has no ONNX model; its weights are \.safetensors"),
        (["m.Q4_K_M.gguf"], None, NotFoundError, r"are \.gguf \(download the file and use: onnx-genai import"),
        ([], None, NotFoundError, "its weights are elsewhere"),
        (["a.onnx", "b.onnx"], None, NotFoundError, r"has the graphs a\.onnx, b\.onnx, but none with a usual name"),
        (
            ["onnx/vision_encoder.onnx", "onnx/encoder_model_q4.onnx", "onnx/decoder_model_merged.onnx"],
            None,
            UnsupportedError,
            r"made of several graphs \(encoder_model_q4, vision_encoder\)",
        ),
        (["../evil.onnx"], None, PackageError, r"lists the file name '\.\./evil\.onnx', which leads out of it"),
        (["/etc/passwd"], None, PackageError, "leads out of it"),
        (["a\\b.onnx"], None, PackageError, "leads out of it"),
    ],
)
def test_repository_without_a_fitting_model_is_refused(
    names: list[str], variant: str | None, kind: type[Exception], said: str | None
) -> None:
    if said is None:
        assert chosen(names, variant)[1] == "cuda/cuda-fp16"
        return
    with pytest.raises(kind, match=said):
        chosen(names, variant)


@pytest.mark.parametrize("metadata", [[], ["genai_config.json"]])
def test_additional_chat_templates_are_fetched(metadata: list[str]) -> None:
    wanted = ["chat_template.jinja", "additional_chat_templates/rag.jinja", "model.onnx", *metadata]
    others = ["additional_chat_templates/rag.txt", "other/additional_chat_templates/x.jinja", "docs/x.jinja"]

    names, folder = chosen([*wanted, *others])

    assert (sorted(names), folder) == (sorted(wanted), "")
