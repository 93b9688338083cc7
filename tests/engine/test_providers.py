"""Execution providers: the grammar of ``ep``, what happens to those that are not here, and a real plugin."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from onnx_genai import LLM, SamplingParams
from onnx_genai.engine import find_ort_library
from onnx_genai.engine.providers import Provider, choose_providers, parse_providers
from onnx_genai.errors import InvalidArgumentError, NotFoundError, UnsupportedError

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)


def _names(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    return [provider.name for provider in parse_providers(text, environ=environ or {})]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("cpu", []),
        (" CPU ", []),
        ("cuda,cpu", ["CUDA"]),
        (" cuda , , WebGPU ", ["CUDA", "WebGPU"]),
        ("web-gpu,core_ml", ["WebGPU", "CoreML"]),
        ("cpu,cuda", []),  # the CPU takes everything
        ("CUDAExecutionProvider", ["CUDA"]),
        ("Foo", ["Foo"]),
    ],
)
def test_list_of_names(text: str, names: list[str]) -> None:
    assert _names(text) == names


def test_inline_plugin_has_name_device_and_options() -> None:
    (plugin,) = parse_providers("plugin:/Opt/Lib.so | name=Mine | device=gpu | opt.Threads=2|opt.b=x=y", environ={})

    assert plugin.plugin_path == Path("/Opt/Lib.so")
    assert (plugin.name, plugin.device) == ("Mine", "GPU")
    assert plugin.options == {"Threads": "2", "b": "x=y"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("plugin:", "plugin:LIBRARY"),
        ("plugin:/a.so|color=red", "color=red"),
        ("plugin:/a.so|opt.=x", "opt."),
        ("plugin:/a.so|device=tpu", "allowed: CPU, GPU, NPU"),
    ],
)
def test_entry_that_cannot_be_understood_is_refused(text: str, part: str) -> None:
    with pytest.raises(InvalidArgumentError, match=part.replace("|", r"\|")):
        parse_providers(text, environ={})


def test_plugin_and_metal_take_their_library_from_the_environment() -> None:
    environ = {
        "ONNX_GENAI_EP_LIBRARY": "/a/libx.so",
        "ONNX_GENAI_EP_NAME": "x",
        "ONNX_GENAI_EP_DEVICE": "npu",
        "ONNX_GENAI_EP_OPTIONS": "k=v, l = w",
        "ONNX_GENAI_MLX_EP_LIBRARY": "/m.dylib",
    }

    plugin, metal = parse_providers("plugin,metal", environ=environ)

    assert (plugin.plugin_path, plugin.name, plugin.device) == (Path("/a/libx.so"), "x", "NPU")
    assert plugin.options == {"k": "v", "l": "w"}
    assert metal.plugin_path == Path("/m.dylib")


def test_options_go_to_the_first_provider_and_the_cpu_takes_none() -> None:
    first, second = parse_providers("cuda,webgpu", {"device_id": "1"}, {})

    assert (first.options, second.options) == ({"device_id": "1"}, {})
    with pytest.raises(InvalidArgumentError, match="cpu takes none"):
        parse_providers("cpu", {"device_id": "1"}, {})


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("nosuch", UnsupportedError, "execution provider nosuch is not in ONNX Runtime"),
        ("plugin:/nosuch/lib.so", NotFoundError, "plugin:lib.so: lib.so: no plugin library there"),
        ("plugin", UnsupportedError, "ONNX_GENAI_EP_LIBRARY"),
    ],
)
def test_provider_that_is_not_here_is_an_error_or_one_short_line(
    text: str, error: type[Exception], reason: str
) -> None:
    library = find_ort_library()
    providers = parse_providers(text, environ={})

    with pytest.raises(error):
        choose_providers(providers, library, strict=True)
    chosen = choose_providers(providers, library, strict=False)

    assert chosen.providers == ()
    assert chosen.effective == "cpu"
    (line,) = chosen.warnings
    assert reason in line
    assert line.endswith("; running on cpu")
    assert "\n" not in line
    assert len(line) < 160


def test_library_that_is_no_plugin_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "libbroken.so"
    file.write_bytes(b"not a library")

    chosen = choose_providers((Provider(entry="plugin:x", plugin_path=file),), find_ort_library(), strict=False)

    assert "libbroken.so" in chosen.warnings[0]


def test_model_given_a_provider_that_is_not_here_runs_on_the_cpu_with_a_warning(
    checksum_package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = checksum_package("gqa")
    with LLM(folder) as llm:
        expected = llm.generate([5, 6], GREEDY).token_ids

    with caplog.at_level(logging.WARNING, "onnx_genai"), LLM(folder, ep="nosuch,cpu", ep_strict=False) as llm:
        assert llm.generate([5, 6], GREEDY).token_ids == expected
        assert llm.info()["execution_provider"] == "cpu"

    assert len(caplog.messages) == 1
    with pytest.raises(UnsupportedError, match="nosuch"):
        LLM(folder, ep="nosuch,cpu")


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_ggml") is None, reason="needs the package onnxruntime-ggml")
@pytest.mark.parametrize("style", ["concat", "gqa"])
def test_model_on_the_plugin_ggml_says_the_same(checksum_package: Callable[..., Path], style: str) -> None:
    folder = checksum_package(style)
    with LLM(folder) as llm:
        expected = llm.generate([5, 6], GREEDY).token_ids

    for ep in ("ggml", "nosuch,ggml"):
        with LLM(folder, ep=ep, ep_strict=False) as llm:
            assert llm.info()["execution_provider"] == "ggml"
            assert llm.generate([5, 6], GREEDY).token_ids == expected
