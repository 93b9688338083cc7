"""What this version cannot do is told, with what it can do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_llm import Script


@pytest.mark.parametrize("words", [["transcribe"], ["transcribe", "model", "a.wav", "--format", "srt"]])
def test_transcribe_says_that_no_model_takes_sound(run: Run, words: list[str]) -> None:
    ran = run(*words)

    assert (ran.code, ran.out) == (1, "")
    assert (
        "What happened: transcribe needs a model that takes sound; this version runs models that write text" in ran.err
    )
    assert "How to fix: " in ran.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--image", "a.png"], "--image takes an image, and no model of this version does: all accept text alone"),
        (["--audio", "a.wav", "--audio", "b.wav"], "--audio takes sound, and no model of this version does"),
        (["--output-image", "a.png"], "--output-image is for models that draw; this version runs models that write"),
        (["--steps", "4"], "--steps is for models that draw"),
        (["--height", "64", "--width", "64"], " is for models that draw"),
        *(
            ([option, value], f"{option} is for models that draw; this version runs models that write text")
            for option, value in (
                ("--negative-prompt", "fog"),
                ("--guidance-scale", "7.5"),
                ("--batch-size", "2"),
                ("--tokenizer", "tokenizer.json"),
                ("--text-encoder", "a.onnx"),
                ("--vae-decoder", "b.onnx"),
                ("--vae-scaling-factor", "0.18215"),
            )
        ),
        (["--output-audio", "a.wav"], "--output-audio is for models that speak"),
        (["--sample-rate", "16000"], "--sample-rate is for models that speak"),
        (["--image", "a.png", "--audio", "b.wav"], "and no model of this version does"),
        (["--output-image", "a.png", "--output-audio", "b.wav"], "is for models that "),
    ],
)
def test_generate_tells_that_it_has_text_alone_before_it_loads(
    run: Run, script: Script, model: Path, options: list[str], said: str
) -> None:
    ran = run("generate", model, "-p", "Hi", *options)

    assert (ran.code, ran.out, script.path) == (1, "", None)
    assert said in ran.err
    assert "Why: This version, execution provider or package cannot do that." in ran.err


def test_help_does_not_list_what_is_absent(run: Run) -> None:
    text = run("generate", "--help").out + run("--help").out

    assert not any(word in text for word in ("--image", "--steps", "transcribe"))
