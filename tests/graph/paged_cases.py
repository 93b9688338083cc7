"""What the tests of paged graphs share: sequences in uneven steps, and the error against the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnx_genai.graph import CacheStyle, GraphContract, resolve
from onnx_genai.package import read
from tests.graph.paged_reference import PagedDriver, Runner, full_logits, reference_runner
from tests.graph.tiny import save
from tests.graph.tiny_attention import CAPACITY, HEADS, HIDDEN, WIDTH, Tiny, build, causal_mask, mask_constants

__all__ = [
    "BIAS",
    "BODY",
    "CAUSAL",
    "DIFFERS_IN_OLD",
    "FORMS",
    "IS_OLD",
    "RNG",
    "ROTARY",
    "SINK",
    "STEPS",
    "TOKENS",
    "largest_error",
    "logits_or_skip",
    "masked",
    "nodes_of",
    "paged_and_original",
    "problems_of",
    "rotary",
    "tolerance",
]

RNG = np.random.default_rng(3)
ANGLES = np.arange(CAPACITY)[:, None] * 0.5 ** np.arange(WIDTH // 2)
ROTARY = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32)}
SINK = {"sink": RNG.standard_normal(HEADS).astype(np.float32)}
BIAS = {"bias": RNG.standard_normal(3 * HEADS * WIDTH).astype(np.float32)}
CAUSAL = {"is_causal": 1}

TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], [5, 3, 5, 8], [9, 7, 9, 3, 2]]
# Steps of (sequence: from, to): prompts in chunks of several sizes beside single tokens.
STEPS = [
    {0: (0, 5), 1: (0, 3)},
    {1: (3, 4), 2: (0, 2), 0: (5, 6)},
    {0: (6, 7), 2: (2, 5)},
    {0: (7, 18)},
    {0: (18, 19)},
]


BODY = {
    "b.heads": np.array([0, -1, 4]),
    "b.joined": np.array([0, -1, HIDDEN]),
    "b.flat": np.array([-1, HIDDEN]),
    "b.square": RNG.standard_normal((HIDDEN, HIDDEN)).astype(np.float32),
    "b.zero": np.array([0]),
    "b.far": np.array([2**31 - 1]),
    "b.two": np.array([2]),
    "b.pads": np.array([0, 0, 2, 0, 0, 0]),
    "b.pad_two": np.array([2, 0]),
    "b.row": RNG.standard_normal((7, HIDDEN)).astype(np.float32),
    "b.fold": np.array([0, 4, -1]),
    "b.first": np.array(0),
}


def paged_and_original(tiny: Tiny, folder: Path) -> tuple[GraphContract, GraphContract]:
    package = read(save(build(tiny), folder))
    return resolve(package, decoder="paged"), resolve(package, last_logits=False)


def problems_of(tiny: Tiny, folder: Path) -> str:
    contract = resolve(read(save(build(tiny), folder)))
    assert contract.cache is not CacheStyle.PAGED
    assert contract.coverage.replaced == 0
    return "\n".join(contract.coverage.problems)


def nodes_of(contract: GraphContract) -> list[onnx.NodeProto]:
    return list(onnx.load_from_string(contract.model_bytes).graph.node)


def rotary(**attributes: Any) -> dict[str, Any]:
    return {"attributes": {"do_rotary": 1, **attributes}, "inputs": {7: "cos", 8: "sin"}, "initializers": ROTARY}


def masked(kind: Any, window: int = 0, *, place: int = 3) -> dict[str, Any]:
    return {
        "nodes": causal_mask(kind, window),
        "initializers": mask_constants(window),
        "inputs": {place: "mask"},
    }


FORMS: dict[str, Tiny] = {
    "gqa": Tiny(),
    "gqa_packed_rotary": Tiny(form="gqa_packed", **rotary()),
    "gqa_interleaved_scale_softcap": Tiny(**rotary(rotary_interleaved=1, scale=0.2, softcap=3.0)),
    "gqa_window_1": Tiny(attributes={"local_window_size": 1}),
    "gqa_window_3": Tiny(attributes={"local_window_size": 3}),
    "gqa_smooth_softmax": Tiny(attributes={"smooth_softmax": 1}),
    "gqa_head_sink": Tiny(inputs={11: "sink"}, initializers=SINK),
    "attention_causal": Tiny(form="attention", attributes=CAUSAL),
    "attention_bool_mask": Tiny(form="attention", **masked("bool")),
    "attention_float_mask": Tiny(form="attention", **masked("float")),
    "attention_window_mask": Tiny(form="attention", **masked("bool", 3)),
    "attention_with_a_heads_axis": Tiny(form="attention_4d", attributes={"softcap": 2.0, **CAUSAL}),
    "static": Tiny(form="static", attributes=CAUSAL),
    "static_with_a_heads_axis": Tiny(form="static_4d", attributes={"scale": 0.3, **CAUSAL}),
    "mha_unidirectional": Tiny(form="mha", attributes={"unidirectional": 1}),
    "mha_bias": Tiny(form="mha", attributes={"unidirectional": 1}, inputs={3: "bias"}, initializers=BIAS),
    "mha_attention_bias": Tiny(form="mha", **masked("float", place=5)),
}


IS_OLD = tuple(int(part) for part in ort.__version__.split(".")[:2]) < (1, 32)
"""Older versions lack operators, or compute some forms in another way than their later versions and the standard."""

DIFFERS_IN_OLD = {"gqa_window_1", "gqa_window_3", "attention_with_a_heads_axis"}
"""Forms that onnxruntime 1.23 computes differently: one key more in a window, the soft cap after the mask."""


def logits_or_skip(contract: GraphContract, tokens: list[int]) -> np.ndarray:
    """Logits of the original, or a skip where onnxruntime is older than its operators."""
    try:
        return full_logits(contract, tokens)
    except (state.Fail, state.NotImplemented) as error:
        if not IS_OLD:
            raise
        pytest.skip(f"onnxruntime {ort.__version__} cannot run the original: {error}")


def largest_error(contract: GraphContract, original: GraphContract, runner: Runner | None = None) -> float:
    """Largest difference of a logit over all steps; ``runner`` for None is onnx's reference with NumPy's operator."""
    wanted = [logits_or_skip(original, tokens) for tokens in TOKENS]
    driver = PagedDriver(contract, runner or reference_runner(contract), block_size=16 if runner else 4)
    worst = 0.0
    for step in STEPS:
        found = driver.step({sequence: TOKENS[sequence][start:end] for sequence, (start, end) in step.items()})
        for sequence, (_, end) in step.items():
            worst = max(worst, float(np.abs(found[sequence] - wanted[sequence][end - 1]).max()))
    return worst


def tolerance() -> float:
    """float32 sums of up to HEADS * WIDTH products of size 10, through two layers, in another order."""
    return 4 * float(np.finfo(np.float32).eps) * 10 * HEADS * WIDTH
