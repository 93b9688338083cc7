"""Streams that go on while long prompts are prefilled: the gap between two of their tokens, in steps of the engine."""

from __future__ import annotations

import dataclasses
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, SamplingParams
from tests.engine.processors import Gate
from tests.models.checksum import VOCAB_SIZE, checksum_generate

pytestmark = pytest.mark.boundary

CHUNK = 16
RUNNING = SamplingParams(max_new_tokens=120, temperature=0, ignore_eos=True)
"""Outlasts all the prompts here, at one token a step."""
NEW = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)


@dataclasses.dataclass
class Step:
    prompt_tokens: int
    chunks: dict[str, int]
    """Request -> tokens of it that ran."""
    given: set[str]
    """Requests that got a token."""


def steps_of(events: Sequence[dict[str, Any]]) -> list[Step]:
    """The steps of a timeline that ran something."""
    spans = [event for event in events if event["ph"] == "X" and event["name"] == "step"]
    starts = [span["ts"] for span in spans]
    steps = [Step(span["args"]["prompt_tokens"], {}, set()) for span in spans]
    for event in events:
        if event["name"] == "chunk" and event["ph"] == "b":
            steps[bisect_right(starts, event["ts"]) - 1].chunks[event["id"]] = event["args"]["tokens"]
        elif event["name"] == "token":
            steps[bisect_right(starts, event["ts"]) - 1].given.add(event["id"])
    return [step for step in steps if step.chunks]


def prompt_of(length: int, seed: int) -> list[int]:
    draw = random.Random(1000 * seed + length)
    return [draw.randrange(3, VOCAB_SIZE) for _ in range(length)]


@pytest.mark.parametrize("decoder", ["paged", "slot", "copy"])
@pytest.mark.parametrize(
    "lengths",
    [(1,), (CHUNK - 1,), (CHUNK,), (CHUNK + 1,), (2 * CHUNK,), (2 * CHUNK + 1,), (20 * CHUNK + 3,), (5, 90, 40, 16)],
    ids=lambda lengths: "-".join(map(str, lengths)),
)
def test_streams_get_a_token_in_every_step_while_prompts_are_prefilled(
    checksum_package: Callable[..., Path], decoder: str, lengths: tuple[int, ...]
) -> None:
    gates = [Gate(), Gate()]
    early = [prompt_of(7, 1), prompt_of(9, 2)]
    late = [prompt_of(length, 3 + index) for index, length in enumerate(lengths)]
    with (
        LLM(
            checksum_package("gqa"), threads=1, decoder=decoder, max_prefill_tokens_while_decoding=CHUNK, max_num_seqs=8
        ) as llm,
        llm.profile() as run,
    ):
        # The engine stands still until the second stream waits, and then, while both run, until all prompts do.
        streams = [llm.stream(early[0], dataclasses.replace(RUNNING, logits_processors=(gates[0],)))]
        assert gates[0].is_reached.wait(60)
        streams.append(llm.stream(early[1], dataclasses.replace(RUNNING, logits_processors=(gates[1],))))
        gates[0].open()
        assert gates[1].is_reached.wait(60)
        streams += [llm.stream(prompt, NEW) for prompt in late]
        gates[1].open()
        answers = [[token for chunk in stream for token in chunk.token_ids] for stream in streams]

    for prompt, answer in zip([*early, *late], answers, strict=True):
        assert answer == checksum_generate(prompt, len(answer))
    assert [len(answer) for answer in answers] == [120, 120, *(3 for _ in late)]
    steps = steps_of(run.result.trace_events())
    ids = list(dict.fromkeys(request for step in steps for request in step.chunks))
    running, new = set(ids[:2]), ids[2:]
    with_new = [index for index, step in enumerate(steps) if any(request in step.chunks for request in new)]
    busy = steps[with_new[0] : with_new[-1] + 1]
    for step in busy:
        assert running <= step.given, "each stream got its token"
        assert step.prompt_tokens <= CHUNK
    prefills = [step for step in busy if step.prompt_tokens]
    assert sum(step.prompt_tokens for step in prefills) == sum(lengths)
    if len(lengths) == 1:
        assert [step.prompt_tokens for step in prefills] == [
            min(CHUNK, lengths[0] - done) for done in range(0, lengths[0], CHUNK)
        ]


def test_without_streams_a_prompt_takes_whole_steps(checksum_package: Callable[..., Path]) -> None:
    with (
        LLM(checksum_package("gqa"), threads=1, max_prefill_tokens_while_decoding=CHUNK) as llm,
        llm.profile() as run,
    ):
        llm.generate(prompt_of(100, 1), NEW)

    assert [step.prompt_tokens for step in steps_of(run.result.trace_events())] == [100, 0, 0]
