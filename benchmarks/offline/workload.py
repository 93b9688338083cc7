"""Lists of requests with fixed lengths and ids from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

RAGGED_PROMPTS = (486, 332, 361, 463, 310, 405, 432, 140, 58, 176, 169, 452, 470, 34, 272, 427)
RAGGED_OUTPUTS = (61, 211, 58, 137, 215, 100, 108, 94, 193, 89, 254, 132, 139, 145, 163, 156)
"""Sixteen requests drawn once, uniform in 32..512 and 32..256: 4,987 prompt tokens and 2,255 output tokens."""

LOWEST_ID = 100  # below it lie special tokens


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once; ``outputs[i]`` tokens are made for ``prompts[i]``, greedy, EOS ignored."""

    prompts: list[list[int]]
    outputs: list[int]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)

    def totals(self) -> dict[str, int]:
        return {
            "requests": len(self.prompts),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


def random_ids(draw: random.Random, count: int, vocab: int) -> list[int]:
    return [draw.randrange(LOWEST_ID, vocab) for _ in range(count)]


def ragged(num_requests: int, *, seed: int, vocab: int, output_scale: float = 1.0) -> Workload:
    """The first ``num_requests`` of the ragged list, which repeats (with other ids) behind its sixteenth.

    Args:
        num_requests: At least 1.
        seed: Same lengths, other ids: a run must not find its prompts in a cache of the run before.
        vocab: Ids are drawn below it.
        output_scale: Factor on the output lengths, for trials.
    """
    draw = random.Random(f"ragged {seed}")
    cycle = range(num_requests)
    prompts = [random_ids(draw, RAGGED_PROMPTS[i % len(RAGGED_PROMPTS)], vocab) for i in cycle]
    outputs = [max(1, round(RAGGED_OUTPUTS[i % len(RAGGED_OUTPUTS)] * output_scale)) for i in cycle]
    return Workload(prompts, outputs)


def shared_prefixes(
    num_requests: int, num_prefixes: int, prefix: int, user: int, new: int, *, seed: int, vocab: int
) -> Workload:
    """Requests whose prompts begin with one of ``num_prefixes`` prefixes in turn and end with ids of their own."""
    draw = random.Random(f"prefixes {seed}")
    heads = [random_ids(draw, prefix, vocab) for _ in range(num_prefixes)]
    prompts = [heads[i % num_prefixes] + random_ids(draw, user, vocab) for i in range(num_requests)]
    return Workload(prompts, [new] * num_requests)


def equal_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, int]:
    """How many requests agree as a whole, and how many tokens agree up to the first difference of each request."""
    same = sum(list(a) == list(b) for a, b in zip(ours, theirs, strict=True))
    tokens = sum(first_difference(a, b) for a, b in zip(ours, theirs, strict=True))
    return {"equal_requests": same, "requests": len(ours), "equal_tokens": tokens, "tokens": sum(map(len, ours))}


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first differing token; the shorter length if there is none."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return min(len(a), len(b))
