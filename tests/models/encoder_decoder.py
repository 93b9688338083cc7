"""A tiny encoder-decoder in the forms in which exporters write them, with its answer in NumPy.

The encoder, for source ids at places t, real where the mask is 1:

    x[t] = words[id] + places[t]        h[t] = tanh(x[t] + mean(x over real places) @ common)

The decoder attends to h, and keeps one of two things of its own tokens:

    attention   x[t] = words[id] + places[t];  a[t] = softmax over 0..t of (x q)(x k)' on (x v)
    state       a[t] = tanh(a[t - 1] @ common + words[id] + places[t]),  0 before the first token
    logits[t] = (x[t] + a[t] + c[t]) @ out,  c = softmax over real places of (x + a) cq . (h ck)' on (h cv)

where x is 0 in the logits of the state form. Every logit so depends on the whole source, the mask, and all tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from tokenizers import processors

from tests.models.nodes import GraphWriter
from tests.models.texts import word_level_tokenizer

__all__ = [
    "EOS",
    "PLACES",
    "START",
    "STYLES",
    "VOCAB",
    "Style",
    "decoder_logits",
    "greedy_answer",
    "write_encoder_decoder",
]

VOCAB = 7
EOS, START = 0, 1
WIDTH = 8
PLACES = 32
HIDDEN = -1e9

Style = Literal["state", "state_fixed", "cross_kv", "merged", "plain"]
"""state: a recurrent decoder of one token a run. state_fixed: the same with 4 rows and 5 places of a source.
cross_kv: the encoder makes the KV of the source. merged: the first run of the decoder makes it, as ``use_cache_branch``
says. plain: nothing is kept."""
STYLES: tuple[Style, ...] = ("state", "state_fixed", "cross_kv", "merged", "plain")

Floats = npt.NDArray[np.float32]


def _tables() -> dict[str, Floats]:
    random = np.random.default_rng(11)

    def table(rows: int, columns: int, scale: float) -> Floats:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    squares = ("common", "q", "k", "v", "cq", "ck", "cv")
    tables = {name: table(WIDTH, WIDTH, 0.6) for name in squares}
    tables |= {f"{side}_{kind}": table(size, WIDTH, 1.0) for side in ("src", "tgt") for kind, size in _SIZES}
    return tables | {"out": table(WIDTH, VOCAB, 1.0)}


_SIZES = (("words", VOCAB), ("places", PLACES))
TABLES = _tables()


def decoder_logits(style: Style, source: Sequence[int], tokens: Sequence[int]) -> Floats:
    """Logits after ``tokens``, which begin with START: float32 ``[VOCAB]``. ``source`` has its end token."""
    table = TABLES
    x = table["src_words"][list(source)] + table["src_places"][: len(source)]
    hidden = np.tanh(x + x.mean(axis=0) @ table["common"])
    own = table["tgt_words"][list(tokens)] + table["tgt_places"][: len(tokens)]
    if style.startswith("state"):
        kept = np.zeros(WIDTH, dtype=np.float32)
        for row in own:
            kept = np.tanh(kept @ table["common"] + row)
        own = np.zeros_like(own)
    else:
        kept = _attention(own[-1] @ table["q"], own @ table["k"], own @ table["v"])
    asked = own[-1] + kept
    seen = _attention(asked @ table["cq"], hidden @ table["ck"], hidden @ table["cv"])
    return (asked + seen) @ table["out"]


def _attention(query: Floats, keys: Floats, values: Floats) -> Floats:
    scores = keys @ query / np.float32(WIDTH**0.5)
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def greedy_answer(style: Style, source: Sequence[int], num_tokens: int) -> list[int]:
    """The ids of the answer, up to ``num_tokens`` or with an EOS at its end."""
    tokens = [START]
    while len(tokens) <= num_tokens and (len(tokens) == 1 or tokens[-1] != EOS):
        tokens.append(int(decoder_logits(style, source, tokens).argmax()))
    return tokens[1:]


EXAMPLES = ([3, 0], [5, 4, 0], [6, 3, 5, 0], [4, 4, 6, 2, 0], [2, 6, 0], [3, 5, 0], [6, 6, 0])


def _write_examples(folder: Path, style: Style) -> None:
    """Sources and their answers, for the tests in C++."""
    lines = []
    for source in EXAMPLES:
        answer = greedy_answer(style, source, 12)
        lines.append(f"{' '.join(map(str, source))} | {' '.join(map(str, answer))}\n")
    (folder / "examples.txt").write_text("".join(lines), encoding="utf-8")


class _Writer(GraphWriter):
    """With the pieces of both graphs."""

    def table(self, name: str) -> str:
        return self.constant(TABLES[name], "float32")

    def product(self, tensor: str, name: str) -> str:
        return self.op("MatMul", tensor, self.table(name))

    def embedded(self, ids: str, side: str, places: str) -> str:
        words = self.op("Gather", self.table(f"{side}_words"), ids)
        return self.op("Add", words, self.op("Gather", self.table(f"{side}_places"), places))

    def attention(self, query: str, keys: str, values: str, bias: str | None) -> str:
        """Of a query [B, T, W]; keys, values [B, S, W]; bias that [B or 1, T or 1, S] can be added to."""
        turned = self.op("Transpose", keys, perm=[0, 2, 1])
        scores = self.op("Mul", self.op("MatMul", query, turned), self.constant(WIDTH**-0.5, "float32"))
        if bias is not None:
            scores = self.op("Add", scores, bias)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), values)

    def mask_bias(self, mask: str) -> str:
        """[B, 1, S] of an integer mask [B, S]."""
        hidden = self.op("Sub", self.constant(1, "float32"), self.cast(mask, "float32"))
        return self.unsqueeze(self.op("Mul", hidden, self.constant(HIDDEN, "float32")), 1)

    def causal_bias(self, past: str, new: str) -> str:
        """[T, P + T]: a token sees what is before it. Sizes are int64 [1]."""
        rows = self.unsqueeze(self.op("Add", self.arange(new), past), 1)
        columns = self.unsqueeze(self.arange(self.op("Add", past, new)), 0)
        later = self.cast(self.op("Greater", columns, rows), "float32")
        return self.op("Mul", later, self.constant(HIDDEN, "float32"))


def _encoder(style: Style) -> onnx.ModelProto:
    fixed = style == "state_fixed"
    batch, width = (4, 5) if fixed else ("batch", "source")
    g = _Writer()
    ids = g.input("input_ids", "int64", [batch, width])
    mask = g.input("attention_mask", "int32" if fixed else "int64", [batch, width])
    x = g.embedded(ids, "src", g.arange(g.dim(ids, 1)))
    real = g.unsqueeze(g.cast(mask, "float32"), 2)
    total = g.op("ReduceSum", g.op("Mul", x, real), g.constant([1]), keepdims=1)
    mean = g.op("Div", total, g.op("ReduceSum", real, g.constant([1]), keepdims=1))
    hidden = g.op("Tanh", g.op("Add", x, g.product(mean, "common")))
    if style == "cross_kv":
        for part, table in (("key", "ck"), ("value", "cv")):
            made = g.unsqueeze(g.product(hidden, table), 1)
            g.output(made, f"present_{part}_cross_0", "float32", [batch, 1, width, WIDTH])
    else:
        name = "encoder_outputs" if style.startswith("state") else "last_hidden_state"
        g.output(hidden, name, "float32", [batch, width, WIDTH])
    return g.model("encoder", 17)


def _state_decoder(style: Style) -> onnx.ModelProto:
    fixed = style == "state_fixed"
    batch, width = (4, 5) if fixed else ("batch", "source")
    g = _Writer()
    ids = g.input("input_ids", "int64", [batch])
    hidden = g.input("encoder_hidden_states", "float32", [batch, width, WIDTH])
    mask = g.input("encoder_attention_mask", "int32" if fixed else "int64", [batch, width])
    before = g.input("rnn_states_prev", "float32", [1, batch, WIDTH])
    place = g.input("past_key_values_length", "int64", [1])
    own = g.embedded(ids, "tgt", place)
    state = g.op("Tanh", g.op("Add", g.product(before, "common"), g.unsqueeze(own, 0)))
    asked = g.op("Transpose", state, perm=[1, 0, 2])
    seen = g.attention(g.product(asked, "cq"), g.product(hidden, "ck"), g.product(hidden, "cv"), g.mask_bias(mask))
    logits = g.product(g.op("Add", asked, seen), "out")
    g.output(g.op("Squeeze", logits, g.constant([1])), "logits", "float32", [batch, VOCAB])
    g.output(state, "rnn_states", "float32", [1, batch, WIDTH])
    return g.model("decoder", 17)


def _kv_decoder(style: Style) -> onnx.ModelProto:
    g = _Writer()
    ids = g.input("input_ids", "int64", ["batch", "new"])
    new = g.dim(ids, 1)
    shape: list[int | str] = ["batch", 1, "past", WIDTH]
    past = {}
    names = ("past_{}_self_0", "present_{}_self_0") if style == "cross_kv" else _MERGED
    if style == "plain":
        num_past = g.constant([0])
    else:
        past = {part: g.input(names[0].format(part), "float32", shape) for part in ("key", "value")}
        num_past = g.dim(past["key"], 2)
    keys, values, bias = _cross(g, style)
    x = g.embedded(ids, "tgt", g.op("Add", g.arange(new), num_past))
    own = {}
    for part, table in (("key", "k"), ("value", "v")):
        made = g.product(x, table)
        if past:
            whole = g.op("Concat", past[part], g.unsqueeze(made, 1), axis=2)
            g.output(whole, names[1].format(part), "float32", ["batch", 1, "total", WIDTH])
            made = g.op("Squeeze", whole, g.constant([1]))
        own[part] = made
    kept = g.attention(g.product(x, "q"), own["key"], own["value"], g.causal_bias(num_past, new))
    asked = g.op("Add", x, kept)
    seen = g.attention(g.product(asked, "cq"), keys, values, bias)
    logits = g.product(g.op("Add", asked, seen), "out")
    g.output(logits, "logits", "float32", ["batch", "new", VOCAB])
    return g.model("decoder", 17)


_MERGED = ("past_key_values.0.decoder.{}", "present.0.decoder.{}")


def _cross(g: _Writer, style: Style) -> tuple[str, str, str | None]:
    """Keys and values of the source [B, S, W], and what hides its padding."""
    shape: list[int | str] = ["batch", 1, "source_past", WIDTH]
    if style == "cross_kv":
        kv = [g.input(f"past_{part}_cross_0", "float32", shape) for part in ("key", "value")]
        return g.op("Squeeze", kv[0], g.constant([1])), g.op("Squeeze", kv[1], g.constant([1])), None
    hidden = g.input("encoder_hidden_states", "float32", ["batch", "source", WIDTH])
    bias = g.mask_bias(g.input("encoder_attention_mask", "int64", ["batch", "source"]))
    if style == "plain":
        return g.product(hidden, "ck"), g.product(hidden, "cv"), bias
    past = [g.input(f"past_key_values.0.encoder.{part}", "float32", shape) for part in ("key", "value")]
    flag = g.op("Squeeze", g.input("use_cache_branch", "bool", [1]))
    branches = {}
    for attribute in ("then_branch", "else_branch"):
        branch = _Writer(prefix=f"{attribute}_")
        for index, table in enumerate(("ck", "cv")):
            if attribute == "then_branch":
                used = branch.op("Identity", past[index])
                # Real exports return nothing of use here: what the first run made has to be kept.
                shown = branch.constant(np.zeros((0, 1, 1, WIDTH)), "float32")
                shown = branch.op("Identity", shown)
            else:
                used = branch.unsqueeze(branch.product(hidden, table), 1)
                shown = branch.op("Identity", used)
            branch.output(used, f"{attribute}_used_{index}", "float32", ["b", 1, "s", WIDTH])
            branch.output(shown, f"{attribute}_shown_{index}", "float32", ["c", 1, "t", WIDTH])
        branches[attribute] = branch.graph(attribute)
    keys, shown_keys, values, shown_values = g.ops("If", 4, flag, **branches)
    for part, shown in (("key", shown_keys), ("value", shown_values)):
        g.output(shown, f"present.0.encoder.{part}", "float32", ["c", 1, "source", WIDTH])
    return g.op("Squeeze", keys, g.constant([1])), g.op("Squeeze", values, g.constant([1])), bias


def write_encoder_decoder(folder: Path, style: Style) -> Path:
    """A package of the model; ``state`` and ``cross_kv`` as genai_config.json has them, the others as optimum.

    In a package of optimum the tokenizer puts EOS behind a source, in the others the runtime does. Returns `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_genai = style.startswith("state") or style == "cross_kv"
    names = ("encoder.onnx", "decoder.onnx") if is_genai else ("encoder_model.onnx", "decoder_model_merged.onnx")
    if style == "plain":
        names = ("encoder_model.onnx", "decoder_model.onnx")
    onnx.save(_encoder(style), folder / names[0])
    decoder = _state_decoder(style) if style.startswith("state") else _kv_decoder(style)
    onnx.save(decoder, folder / names[1])
    tokenizer = word_level_tokenizer(VOCAB)
    if not is_genai:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", EOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_examples(folder, style)
    config = {"model_type": "marian", "is_encoder_decoder": True, "vocab_size": VOCAB, "d_model": WIDTH}
    ids = {"decoder_start_token_id": START, "eos_token_id": EOS, "pad_token_id": START}
    if is_genai:
        _write(folder / "genai_config.json", _genai_config(style))
    else:
        _write(folder / "config.json", {**config, **ids, "max_position_embeddings": PLACES})
    return folder


def _genai_config(style: Style) -> dict[str, Any]:
    if style.startswith("state"):
        inputs = {
            "encoder_hidden_states": "encoder_hidden_states",
            "encoder_attention_mask": "encoder_attention_mask",
            "rnn_states_prev": "rnn_states_prev",
            "past_key_values_length": "past_key_values_length",
        }
        outputs = {"rnn_states": "rnn_states"}
        made = {"encoder_outputs": "encoder_outputs"}
    else:
        inputs = {"past_key_names": "past_key_self_%d", "past_value_names": "past_value_self_%d"}
        inputs |= {"cross_past_key_names": "past_key_cross_%d", "cross_past_value_names": "past_value_cross_%d"}
        outputs = {"present_key_names": "present_key_self_%d", "present_value_names": "present_value_self_%d"}
        made = {
            "cross_present_key_names": "present_key_cross_%d",
            "cross_present_value_names": "present_value_cross_%d",
        }
    encoder = {"filename": "encoder.onnx", "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"}}
    return {
        "model": {
            "type": "marian-ssru",
            "vocab_size": VOCAB,
            "context_length": PLACES,
            "bos_token_id": START,
            "eos_token_id": EOS,
            "pad_token_id": START,
            "encoder": {**encoder, "outputs": made},
            "decoder": {
                "filename": "decoder.onnx",
                "inputs": {"input_ids": "input_ids", **inputs},
                "outputs": {"logits": "logits", **outputs},
            },
        },
        "search": {"do_sample": False, "max_length": PLACES},
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
