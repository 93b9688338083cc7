"""Reasoning is told from the answer, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_genai.reasoning import (
    MARKERS,
    MarkedText,
    ReasoningMarkers,
    ReasoningSplitter,
    find_markers,
    split_reasoning,
)
from onnx_genai.reasoning.marked import Piece

THINK = ReasoningMarkers("<think>", "</think>")
CHANNELS = MARKERS[0]


def streamed(pieces: list[str], markers: ReasoningMarkers, *, inside: bool) -> tuple[str, str, bool]:
    splitter = ReasoningSplitter(markers, inside=inside)
    splits = [split for piece in pieces for split in splitter.feed(piece)] + splitter.finish()
    assert all(bool(split.reasoning) != bool(split.answer) for split in splits)
    return "".join(s.reasoning for s in splits), "".join(s.answer for s in splits), splitter.unfinished


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>why</think>because", False, ("why", "because", False)),
        ("\n<think>\nwhy\n</think>\n\nbecause ", False, ("why", "because ", False)),
        ("why</think>because", True, ("why", "because", False)),
        (" plain answer ", False, ("", " plain answer ", False)),
        ("<think>cut off", False, ("cut off", "", True)),
        ("cut off", True, ("cut off", "", True)),
        ("<think></think>x", False, ("", "x", False)),
        ("use the <think> tag", False, ("", "use the <think> tag", False)),
        ("<think>a</think>b <think>c</think>", False, ("a", "b <think>c</think>", False)),
        ("</think> stray", False, ("", "</think> stray", False)),
        ("<think>a < b and </thin</think>c", False, ("a < b and </thin", "c", False)),
        ("", False, ("", "", False)),
    ],
)
def test_splits(text: str, inside: bool, expected: tuple[str, str, bool]) -> None:
    assert split_reasoning(text, THINK, inside=inside) == expected
    for cut in range(len(text) + 1):
        assert streamed([text[:cut], text[cut:]], THINK, inside=inside) == expected
    assert streamed(list(text), THINK, inside=inside) == expected


@pytest.mark.parametrize(
    "text", ["<think>\nHm, so.\n</think>\n\nThe <b> answer", "<think></think>x", "No <think> here"]
)
def test_of_a_mark_that_is_cut_anywhere_nothing_shows(text: str) -> None:
    reasoning, answer, _ = split_reasoning(text, THINK)
    for cut in range(len(text)):
        parts = []
        for pieces in ([text[:cut]], list(text[:cut])):
            splitter = ReasoningSplitter(THINK)
            splits = [split for piece in pieces for split in splitter.feed(piece)] + splitter.finish(was_cut=True)
            parts.append(("".join(each.reasoning for each in splits), "".join(each.answer for each in splits)))

        assert parts[0] == parts[1], cut
        assert reasoning.startswith(parts[0][0].rstrip()), cut
        assert answer.startswith(parts[0][1]), cut


def test_channels_may_reason_again() -> None:
    text = (
        "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>commentary<|message|>text<|end|>"
        "<|channel|>analysis<|message|>two<|end|>end"
    )
    reasoning, answer, unfinished = split_reasoning(text, CHANNELS)
    assert (reasoning, unfinished) == ("onetwo", False)
    assert answer == "<|start|>assistant<|channel|>commentary<|message|>text<|end|>end"
    assert streamed(list(text), CHANNELS, inside=False) == (reasoning, answer, unfinished)


def kinds(pieces: list[str], markers: ReasoningMarkers, *, inside: bool) -> str:
    """A letter for each character of a text: of its kind."""
    marked = MarkedText(markers, inside=inside)
    found = [each for piece in pieces for each in marked.feed(piece)] + marked.finish()
    assert "".join(each.text for each in found) == "".join(pieces)
    return "".join(len(each.text) * each.kind[0] for each in found)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>why</think> because", False, "mmmmmmmrrrmmmmmmmmaaaaaaaa"),
        (" <think>", False, "ammmmmmm"),
        ("why</think>", True, "rrrmmmmmmmm"),
        ("a<think>", False, "aaaaaaaa"),
        ("<think></think><think>", False, "mmmmmmmmmmmmmmmmmmmmmm"),
        ("<think></think>a<think>", False, "mmmmmmmmmmmmmmmaaaaaaaa"),
        ("<thi", False, "aaaa"),
        ("", True, ""),
    ],
)
def test_marked_text_is_whole_and_each_letter_has_a_kind(text: str, inside: bool, expected: str) -> None:
    for cut in range(len(text) + 1):
        assert kinds([text[:cut], text[cut:]], THINK, inside=inside) == expected
    assert kinds(list(text), THINK, inside=inside) == expected


def test_marked_text_that_is_cut_in_a_mark_ends_with_a_mark() -> None:
    marked = MarkedText(THINK)

    assert marked.feed("<think>why</thi") + marked.finish(was_cut=True) == [
        Piece("<think>", "mark"),
        Piece("why", "reasoning"),
        Piece("</thi", "mark"),
    ]
    assert marked.inside


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", " ", "\n", "<", "think>"]), max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 80), max_size=6),
    st.sampled_from([THINK, CHANNELS]),
)
def test_every_cut_gives_the_same(words: list[str], inside: bool, cuts: list[int], markers: ReasoningMarkers) -> None:
    text = "".join(words)
    if markers is CHANNELS:
        text = text.replace("<think>", markers.start).replace("</think>", markers.end)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert streamed(pieces, markers, inside=inside) == split_reasoning(text, markers, inside=inside)
    assert kinds(pieces, markers, inside=inside) == kinds([text], markers, inside=inside)


def test_markers_come_from_the_template_or_the_tokens() -> None:
    assert find_markers("{% if '</think>' in content %}") == THINK
    assert find_markers("{{ messages }}", ["<think>", "</think>", "<eos>"]) == THINK
    assert find_markers("{{ messages }}", ["<think>"]) is None
    assert find_markers("a model called think") is None
    assert find_markers("<|start|>assistant<|channel|>analysis") is CHANNELS
    assert find_markers("", ["<|channel|>", "<|message|>", "<|end|>"]) is CHANNELS
    found = find_markers("[THINK]x[/THINK]")
    assert found == ReasoningMarkers("[THINK]", "[/THINK]")


def test_a_prompt_may_open_the_reasoning() -> None:
    assert THINK.opened_by("<|im_start|>assistant\n<think>\n")
    assert not THINK.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.opened_by("<|im_start|>assistant\n")
