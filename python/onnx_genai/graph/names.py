"""Reads roles from the port names that exporters use. Used only where the package declares nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["KvName", "foreign_kind", "parse_kv_name"]

INPUT_IDS = ("input_ids", "decoder_input_ids")
ATTENTION_MASK = ("attention_mask", "decoder_attention_mask")
POSITION_IDS = ("position_ids", "decoder_position_ids")
SEQLENS_K = ("seqlens_k",)
TOTAL_LENGTH = ("total_sequence_length", "total_seq_len")
PAST_LENGTH = ("past_sequence_length", "past_key_values_length", "past_seq_len")
CACHE_POSITION = ("cache_position",)
USE_CACHE = ("use_cache_branch",)
WRITE_INDICES = ("write_indices",)
KV_LENGTH = ("nonpad_kv_seqlen",)
CUMULATIVE_LENGTHS = ("cumulative_sequence_lengths", "cumulative_sequence_length")
PAST_LENGTHS = ("past_sequence_lengths", "past_seqlens")
BLOCK_TABLE = ("block_table",)
ATTENTION_METADATA = ("attention_metadata",)
LOGITS_INDICES = ("logits_indices",)
LOGITS_TO_KEEP = ("num_logits_to_keep", "logits_to_keep")
TOKEN_TYPES = ("token_type_ids", "segment_ids")
LOGITS = ("logits",)

Side = Literal["past", "present", "static_in", "static_out", "cross"]
Part = Literal["key", "value", "packed"]

_FILLERS = frozenset({"past", "present", "kv", "self", "decoder", "cache", "updated", "states", "attn"})
_PARTS: dict[str, Part] = {"key": "key", "k": "key", "value": "value", "v": "value"}


@dataclass(frozen=True, slots=True)
class KvName:
    """What a KV port name says."""

    side: Side
    layer: int
    part: Part


def parse_kv_name(name: str) -> KvName | None:
    """Returns what a name like ``past_key_values.3.key``, ``present_3`` or ``key_cache.0`` means, or None."""
    words = re.split(r"[._/]+", name.replace("key_values", "kv").replace("key_value", "kv"))
    numbers = [word for word in words if word.isascii() and word.isdigit()]
    parts = [_PARTS[word] for word in words if word in _PARTS]
    rest = {word for word in words if word not in _PARTS and not (word.isascii() and word.isdigit())}
    cross = bool(rest & {"cross", "encoder"})
    rest -= {"cross", "encoder"}
    if len(numbers) != 1 or len(parts) > 1 or not rest or not rest <= _FILLERS or len(numbers[0]) > 6:
        return None
    layer, part = int(numbers[0]), parts[0] if parts else "packed"
    side: Side
    if cross:
        side = "cross"
    elif "past" in rest:
        side = "past"
    elif "present" in rest:
        side = "present"
    elif "cache" in rest and parts:
        side = "static_out" if "updated" in rest else "static_in"
    else:
        return None
    return KvName(side, layer, part)


# What an input that a plain text decoder does not have says about the model.
_FOREIGN = (
    (r"inputs_embeds|.*_embeds?|embeddings", "a decoder on embeddings, which needs the pipeline that makes them"),
    (
        r"encoder_(hidden_states|outputs|attention_mask)|.*[._]cross[._].*|.*[._]encoder[._].*|cross_.*",
        "the decoder of an encoder-decoder pipeline",
    ),
    (r"pixel_.*|image_.*|.*image_features|vision_.*|image_grid_thw", "part of a vision-language pipeline"),
    (r"input_features|audio_.*|input_values|waveform", "part of an audio pipeline"),
    (
        r".*(conv|ssm|recurrent|rnn)_?(state|states|cache)?([._].*|s_prev)?|.*(conv|ssm|recurrent|rnn)_state.*",
        "a hybrid or recurrent model, whose state is no KV cache",
    ),
    (
        r"block_table.*|cumulative_sequence_lengths|past_sequence_lengths|attention_metadata|slot_mapping",
        "an export for paged attention of another runtime",
    ),
    (r"beam_width|cache_indirection", "an export with beam search inside"),
    (r"sample|timestep|latent.*|noise.*", "part of a diffusion pipeline"),
    (r"hidden_states|fused_hidden|target_hidden.*|shared_kv.*", "a drafter for speculative decoding"),
    (r"per_layer_inputs|deepstack_.*", "a decoder on embeddings, which needs the pipeline that makes them"),
)


def foreign_kind(name: str) -> str | None:
    """Returns what kind of model has such an input, in words; None if the name says nothing."""
    for pattern, kind in _FOREIGN:
        if re.fullmatch(pattern, name):
            return kind
    return None
