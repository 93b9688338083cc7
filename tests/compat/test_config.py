"""What a Config says about how a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator, sequences
from tests.models.checksum import checksum_generate


@pytest.fixture
def config(checksum_package: Callable[..., Path]) -> og.Config:
    return og.Config(str(checksum_package("gqa")))


def test_provider_is_the_cpu_unless_something_else_is_said(config: og.Config) -> None:
    assert config.provider() == ("cpu", {})

    config.append_provider("cuda")
    config.set_provider_option("cuda", "device_id", "1")

    assert config.provider() == ("cuda", {"device_id": "1"})
    config.clear_providers()
    assert config.provider() == ("cpu", {})
    config.set_provider_option("openvino", "device_type", "CPU")
    assert config.provider() == ("OpenVINO", {"device_type": "CPU"})


def test_provider_of_the_package_is_followed_and_can_be_cleared(config: og.Config) -> None:
    options = {"provider_options": [{"cuda": {"enable_cuda_graph": "0"}}]}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    assert config.provider() == ("cuda", {"enable_cuda_graph": "0"})
    config.set_provider_option("CUDA", "device_id", "0")
    assert config.provider() == ("cuda", {"enable_cuda_graph": "0", "device_id": "0"})
    with pytest.raises(errors.UnsupportedError, match="clear_providers"):
        og.Model(config)

    config.clear_providers()

    with og.Model(config) as loaded:
        assert loaded.device_type == "CPU"


@pytest.mark.boundary
def test_overlay_changes_ends_lengths_and_defaults(config: og.Config) -> None:
    third = checksum_generate([5, 6], 3)[2]
    config.overlay(json.dumps({"model": {"eos_token_id": [third]}}))
    config.overlay('{"model": {"context_length": 64}, "search": {"max_length": 50, "top_k": 3}}')
    with og.Model(config) as loaded:
        options = og.GeneratorParams(loaded).get_search_options()
        made = generator(loaded)
        made.append_tokens([5, 6])
        found = sequences(made)
        with pytest.raises(errors.ContextOverflowError, match="64"):
            generator(loaded, max_length=65)

    assert (options["max_length"], options["top_k"]) == (50, 3)
    assert found == [[5, 6, *checksum_generate([5, 6], 2)]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", errors.InvalidArgumentError),
        ("[]", errors.InvalidArgumentError),
        (5, errors.InvalidArgumentError),
        ('{"model": {"eos_token_id": "x"}}', errors.PackageError),
        ('{"model": {"decoder": {"filename": "../x.onnx"}}}', errors.PackageError),
        ('{"model": {"tokenizer_dir": "other"}}', errors.UnsupportedError),
    ],
)
def test_wrong_overlay_is_refused_and_leaves_what_was(text: str, error: type[Exception], config: og.Config) -> None:
    before = config.package()
    with pytest.raises(error):
        config.overlay(text)
    assert config.package() == before


@pytest.mark.parametrize("path", ["", "no/such/folder", "x" * 5000, 5, None])
def test_path_that_is_no_model_is_refused(path: object) -> None:
    for make in (og.Config, og.Model, og.Tokenizer):
        with pytest.raises((errors.NotFoundError, errors.InvalidArgumentError)):
            make(path)  # type: ignore[operator]


def test_what_has_no_counterpart_is_refused(config: og.Config) -> None:
    config.clear_decoder_provider_options_hardware_device_id("cpu")
    for call in (
        lambda: config.add_model_data("a", b""),
        lambda: config.remove_model_data("a"),
        lambda: og.Config.from_package_ep("a", "cpu"),
        lambda: config.set_decoder_provider_options_hardware_device_type("openvino", "NPU"),
    ):
        with pytest.raises(errors.UnsupportedError, match="not available"):
            call()
    with pytest.raises(errors.InvalidArgumentError, match="a name such as cpu"):
        config.append_provider("")


def test_overlay_of_the_geometry_reaches_the_package(config: og.Config) -> None:
    config.overlay('{"model": {"decoder": {"num_hidden_layers": 7}, "vocab_size": 5}}')

    found = config.package()

    assert (found.kv.num_layers, found.vocab_size) == (7, 5)
    assert found.kv.num_kv_heads is not None
