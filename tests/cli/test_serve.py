"""``onnx-genai serve``: what the command line makes of its options."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onnx_genai.server
from tests.cli.conftest import Run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the server would have been started with; it is not."""
    calls: list[Any] = []
    monkeypatch.setattr(onnx_genai.server, "serve", lambda models, config: calls.extend((models, config)))
    monkeypatch.delenv("ONNX_GENAI_API_KEY", raising=False)
    return calls


def test_a_folder_is_served_under_its_own_name_on_this_machine_only(run: Run, served: list[Any], model: Path) -> None:
    ran = run("serve", model)

    assert ran.code == 0, ran.err
    models, config = served
    assert [spec.name for spec in models] == ["model"]
    assert models[0].eager
    assert (config.host, config.port, config.api_keys) == ("127.0.0.1", 8080, ())
    assert ran.out == ""
    assert "http://127.0.0.1:8080/v1" in ran.err


def test_models_can_be_named_and_have_aliases(run: Run, served: list[Any], model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    ran = run("serve", f"a/b={model}", other, "--alias", "c=a/b", "--alias", "d=a/b", "--lazy")

    assert ran.code == 0, ran.err
    assert [(spec.name, spec.aliases, spec.eager) for spec in served[0]] == [
        ("a/b", ("c", "d"), False),
        ("other", (), False),
    ]


def test_options_become_the_configuration(run: Run, served: list[Any], model: Path) -> None:
    options = ["--port", "0", "--cors-origin", "https://a", "--allowed-host", "box", "--max-open-requests", "3"]
    options += ["--max-output-tokens", "7", "--max-body-bytes", "9", "--drain-timeout", "1.5", "--heartbeat", "0"]
    options += ["--model-ttl", "5", "--max-loaded-models", "2", "--request-timeout", "8", "--session-ttl", "6"]
    options += ["--max-model-bytes", "1.5GiB"]
    options += ["--no-page"]

    assert run("serve", model, *options).code == 0

    config = served[1]
    assert (config.port, config.cors_origins, config.allowed_hosts) == (0, ("https://a",), ("box",))
    assert (config.limits.max_open_requests, config.limits.max_output_tokens, config.limits.max_body_bytes) == (3, 7, 9)
    assert (config.drain_timeout, config.heartbeat, config.model_ttl, config.max_loaded_models) == (1.5, 0, 5, 2)
    assert config.max_model_bytes == 3 * 2**29
    assert (config.limits.request_timeout, config.limits.session_ttl) == (8, 6)
    assert config.page is False


def test_a_bound_on_memory_is_checked_and_models_come_with_their_size(run: Run, served: list[Any], model: Path) -> None:
    wrong = run("serve", model, "--max-model-bytes", "much")
    assert (wrong.code, "8GiB" in wrong.err) == (2, True)

    nothing = run("serve", model, "--max-model-bytes", "0")
    assert (nothing.code != 0, "max_model_bytes is 0" in nothing.err) == (True, True)

    assert run("serve", model, "--max-model-bytes", "0.5").code == 0

    assert 2**20 < served[1].max_model_bytes < 2**50
    assert served[0][0].size_bytes == sum(file.stat().st_size for file in model.glob("*.onnx*"))


def test_spans_go_nowhere_unless_they_are_asked_for(
    run: Run, served: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    assert run("serve", model).code == 0

    assert served[1].tracing is None


@pytest.mark.parametrize("options", [["--otel"], ["--otlp-endpoint", "http://127.0.0.1:9"]])
def test_spans_go_to_a_collector(run: Run, served: list[Any], model: Path, options: list[str]) -> None:
    pytest.importorskip("opentelemetry.sdk")

    ran = run("serve", model, *options)

    assert ran.code == 0, ran.err
    served[1].tracing.close()


def test_a_collector_without_opentelemetry_says_what_to_install(
    run: Run, served: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    ran = run("serve", model, "--otel")

    assert (ran.code, served) == (1, [])
    assert "pip install 'onnx-genai[otel]'" in " ".join(ran.err.split())


def test_keys_come_from_a_file_and_the_environment(
    run: Run, served: list[Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\ntwo\n", encoding="utf-8")
    monkeypatch.setenv("ONNX_GENAI_API_KEY", "three")

    ran = run("serve", model, "--api-key-file", file, "--host", "0.0.0.0")

    assert ran.code == 0, ran.err
    assert served[1].api_keys == ("one", "two", "three")
    assert "three" not in ran.err


def test_a_file_of_keys_that_is_no_text_is_told(run: Run, served: list[Any], model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"one\n\xff\xfe")

    ran = run("serve", model, "--api-key-file", file)

    assert (ran.code, served) == (1, [])
    assert "is not UTF-8 (byte 4)" in " ".join(ran.err.split())
    assert "fault in onnx-genai" not in ran.err


@pytest.mark.parametrize("value", ["", "  "])
def test_a_key_that_is_set_but_empty_is_a_mistake(
    run: Run, served: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ONNX_GENAI_API_KEY", value)

    ran = run("serve", model)

    assert ran.code == 1
    assert "ONNX_GENAI_API_KEY" in ran.err
    assert not served


def test_other_machines_are_not_served_without_a_key(run: Run, served: list[Any], model: Path) -> None:
    ran = run("serve", model, "--host", "0.0.0.0")

    assert ran.code == 1
    assert "--allow-no-key" in ran.err
    assert not served
    assert run("serve", model, "--host", "0.0.0.0", "--allow-no-key").code == 0


@pytest.mark.parametrize(
    "arguments",
    [[], ["--alias", "x"], ["--alias", "x=nobody"], ["--port", "70000"], ["--max-open-requests", "0"]],
)
def test_wrong_usage_is_told(run: Run, served: list[Any], model: Path, arguments: list[str]) -> None:
    ran = run("serve", *([model] if arguments else []), *arguments)

    assert ran.code == 2
    assert not served


def test_a_model_that_is_not_there_is_told(run: Run, served: list[Any]) -> None:
    ran = run("serve", "./nowhere")

    assert ran.code == 1
    assert "nowhere" in ran.err


def test_a_taken_address_is_told(run: Run, scripted_package: Callable[..., Path]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        ran = run("serve", scripted_package("x"), "--port", taken.getsockname()[1], "--lazy")

    assert ran.code == 1
    assert "cannot listen" in ran.err
    assert "address already in use" in ran.err
    assert "SystemExit" not in ran.err


@pytest.mark.parametrize("host", ["999.1.1.1", "no-such-name.invalid", "a..b"])
def test_a_host_that_is_none_is_told(run: Run, scripted_package: Callable[..., Path], host: str) -> None:
    ran = run("serve", scripted_package("x"), "--host", host, "--allow-no-key", "--lazy")

    assert ran.code == 1
    text = " ".join(ran.err.split())
    assert f"'{host}' is no address, and no name that resolves to one" in text
    assert "in use" not in text
    assert "SystemExit" not in text
    assert "fault in onnx-genai" not in text


def test_an_address_of_another_machine_is_told(run: Run, scripted_package: Callable[..., Path]) -> None:
    ran = run("serve", scripted_package("x"), "--host", "192.0.2.1", "--allow-no-key", "--lazy")

    assert ran.code == 1
    assert "cannot assign requested address" in " ".join(ran.err.split())


def test_json_lines_are_objects_also_for_the_access_log(
    run: Run, served: list[Any], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("serve", model, "--log-format", "json")

    logging.getLogger("onnx_genai.server").info("hello\nworld")
    logging.getLogger("onnx_genai.server.access").info("%s", json.dumps({"status": 200}))

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [line.get("message") for line in lines] == ["hello\nworld", None]
    assert lines[1]["status"] == 200


def test_adapters_belong_to_a_model(run: Run, served: list[Any], model: Path, tmp_path: Path) -> None:
    ran = run("serve", model, "--adapter", "red=a.onnx_adapter", "--adapter", "model:blue=b.onnx_adapter")
    assert ran.code == 0, ran.err
    assert sorted(served[0][0].adapters) == ["blue", "red"]

    served.clear()
    ran = run("serve", f"a={model}", f"b={model}", "--adapter", "b:red=a.onnx_adapter")
    assert ran.code == 0, ran.err
    assert [spec.adapters for spec in served[0]] == [(), ("red",)]


@pytest.mark.parametrize(
    ("models", "given", "words"),
    [
        (1, ["red"], "write NAME=FILE"),
        (1, ["=a"], "write NAME=FILE"),
        (1, ["red=a", "red=b"], "gives 'red' twice"),
        (1, ["other:red=a"], "is for other; the models are m0"),
        (2, ["red=a"], "write MODEL:NAME=FILE"),
    ],
)
def test_adapters_of_nothing_are_refused(
    run: Run, served: list[Any], model: Path, models: int, given: list[str], words: str
) -> None:
    named = [f"m{number}={model}" for number in range(models)]

    ran = run("serve", *named, *(part for each in given for part in ("--adapter", each)))

    assert ran.code == 2
    assert words in ran.err
    assert served == []
