"""Models whose answer the test chooses: a list of ids, one list for each turn, or a table of logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx

from tests.models.nodes import GraphWriter

__all__ = ["HEAD_SIZE", "NUM_KV_HEADS", "build_dialogue", "build_scripted", "build_table"]

NUM_KV_HEADS = 1
HEAD_SIZE = 8
_CACHE = ("past_key_values.0.key", "past_key_values.0.value")
_PRESENT = ("present.0.key", "present.0.value")


def build_table(logits: npt.ArrayLike) -> onnx.ModelProto:
    """A decoder whose logits depend on the last id alone: row ``id`` of `logits`, float32 [vocab, vocab].

    It has a KV cache of one layer like any decoder, and ignores it.
    """
    table = np.asarray(logits, dtype=np.float32)
    g = GraphWriter()
    ids = g.input("input_ids", "int64", ["batch", "new"])
    g.input("attention_mask", "int64", ["batch", "total"])
    past = _cache_inputs(g)
    g.output(
        g.op("Gather", g.constant(table, "float32"), ids, axis=0), "logits", "float32", ["batch", "new", table.shape[1]]
    )
    _cache_outputs(g, past, g.cast(ids, "float32"))
    return g.model("table", 17)


def build_scripted(script: Sequence[int], vocab_size: int, eos: int) -> onnx.ModelProto:
    """A decoder that says `script` and then `eos`, after any prompt that does not end with a beginning of `script`.

    The next id is ``script[k]`` with k the length of the longest beginning of `script` that ends the history, so the
    script may repeat ids, and a lost or doubled token is seen. k lives in the KV cache.
    """
    return _build_automaton("scripted", _transitions(script, vocab_size), [*script, eos], vocab_size)


def build_dialogue(answers: Sequence[Sequence[int]], vocab_size: int, eos: int, turn: int) -> onnx.ModelProto:
    """A decoder that says ``answers[n]`` and then `eos` behind the n-th `turn` of the history, counted from 0.

    Where something else than the answer follows a `turn`, and behind the last answer, it says `eos`: a lost or doubled
    token is seen.
    """
    starts = np.cumsum([1, *(len(answer) + 2 for answer in answers)])
    table = np.zeros((int(starts[-1]) + 1, vocab_size), dtype=np.int16)
    says = [eos] * len(table)
    table[0, turn] = starts[0]
    table[starts[-1]] = starts[-1]
    for answer, start, after in zip(answers, starts, starts[1:], strict=False):
        table[start:after] = after - 1  # where the history is another than the answer
        table[start:after, turn] = after
        for place, token in enumerate(answer):
            table[start + place, token] = start + place + 1
            says[start + place] = token
    return _build_automaton("dialogue", table, says, vocab_size)


def _build_automaton(
    name: str, transitions: npt.NDArray[np.int16], says: Sequence[int], vocab_size: int
) -> onnx.ModelProto:
    """A decoder whose next id is ``says[state]``; each id of the history leads from state to state, from 0 on.

    The state lives in the KV cache. `transitions` is [states, vocab].
    """
    g = GraphWriter()
    ids = g.input("input_ids", "int64", ["batch", "new"])
    mask = g.input("attention_mask", "int64", ["batch", "total"])
    past = _cache_inputs(g)

    states = _scan_states(g, ids, mask, _last_state(g, mask, past[1]), transitions)
    next_ids = g.op("Gather", g.constant(list(says)), states)
    g.output(
        g.op("Gather", g.constant(_peaks(vocab_size), "float32"), next_ids, axis=0),
        "logits",
        "float32",
        ["batch", "new", vocab_size],
    )
    _cache_outputs(g, past, g.cast(states, "float32"))
    return g.model(name, 17)


def _peaks(vocab_size: int) -> np.ndarray:
    """Row i: 20 at i, else about 0 without ties; sampling at temperature 1 takes i with p > 0.999999."""
    distance = (np.arange(vocab_size)[None, :] - np.arange(vocab_size)[:, None]) % vocab_size
    return np.where(distance == 0, 20.0, -0.01 * distance).astype(np.float32)


def _transitions(script: Sequence[int], vocab_size: int) -> np.ndarray:
    """int16 [len + 1, vocab]: from "k ids matched" and an id to the next k. Source: Knuth, Morris, Pratt 1977."""
    table = np.zeros((len(script) + 1, vocab_size), dtype=np.int16)
    fallback = 0
    for state in range(len(script) + 1):
        if state:
            table[state] = table[fallback]
        if state < len(script):
            if state:
                fallback = int(table[fallback, script[state]])
            table[state, script[state]] = state + 1
    return table


def _cache_inputs(g: GraphWriter) -> list[str]:
    return [g.input(name, "float32", ["batch", NUM_KV_HEADS, "past", HEAD_SIZE]) for name in _CACHE]


def _cache_outputs(g: GraphWriter, past: Sequence[str], numbers: str) -> None:
    """Appends float32 [batch, new] `numbers` to both caches, the same in all channels."""
    new = g.op("Mul", g.unsqueeze(numbers, 1, 3), g.constant(np.ones((1, NUM_KV_HEADS, 1, HEAD_SIZE)), "float32"))
    for old, name in zip(past, _PRESENT, strict=True):
        g.output(g.op("Concat", old, new, axis=2), name, "float32", ["batch", NUM_KV_HEADS, "total", HEAD_SIZE])


def _last_state(g: GraphWriter, mask: str, past_value: str) -> str:
    """The number kept at the last valid place of the past, 0 without one: int64 [batch]."""
    new_to_old = g.op("Slice", past_value, g.constant([0]), g.constant([1]), g.constant([3]))  # [batch,1,past,1]
    kept = g.cast(g.op("Squeeze", new_to_old, g.constant([1, 3])), "int64")
    with_start = g.op("Pad", kept, g.constant([0, 1, 0, 0]))
    places = g.add(g.arange(g.dim(past_value, 2)), 1)
    past_mask = g.op("Slice", mask, g.constant([0]), g.dim(past_value, 2), g.constant([1]))
    # A place 0 in front keeps the maximum of an empty past defined.
    valid = g.op("Pad", g.op("Mul", past_mask, places), g.constant([0, 1, 0, 0]))
    last = g.op("ReduceMax", valid, axes=[1], keepdims=1)
    return g.op("Squeeze", g.op("GatherElements", with_start, last, axis=1), g.constant([1]))


def _scan_states(g: GraphWriter, ids: str, mask: str, state: str, transitions: np.ndarray) -> str:
    """Follows `transitions` over the new ids; masked ids leave the state. int64 [batch, new]."""
    table = g.constant(transitions.reshape(-1), "int16")
    new_mask = g.slice_from(mask, g.op("Neg", g.dim(ids, 1)), 1)
    body = GraphWriter(prefix="body_")
    before = body.input("body_state", "int64", ["batch"])
    token = body.input("body_id", "int64", ["batch"])
    valid = body.input("body_valid", "int64", ["batch"])
    place = body.op("Add", body.op("Mul", before, body.constant(transitions.shape[1])), token)
    after = body.op("Where", body.cast(valid, "bool"), body.cast(body.op("Gather", table, place), "int64"), before)
    body.output(after, "body_after", "int64", ["batch"])
    body.output(after, "body_kept", "int64", ["batch"])
    by_time = [g.op("Transpose", tensor, perm=[1, 0]) for tensor in (ids, new_mask)]
    _, states = g.ops("Scan", 2, state, *by_time, body=body.graph("step"), num_scan_inputs=2)
    return g.op("Transpose", states, perm=[1, 0])
