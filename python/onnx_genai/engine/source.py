"""Prompts of encoder-decoders: what the encoder reads, and what the decoder begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnx_genai import _core
from onnx_genai.errors import ContextOverflowError, InvalidArgumentError
from onnx_genai.graph import DType, EncoderGraph, GraphContract
from onnx_genai.package import SourceEncoder

__all__ = ["SourceText"]

_DEFAULT_LIMIT = 8192
"""Tokens of a source where nothing states a limit: the memory of attention grows with their square."""
_TYPES = {DType.INT64: np.int64, DType.INT32: np.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """Makes the tensors of a source from its token ids."""

    graph: EncoderGraph
    masks: tuple[tuple[str, DType], ...]
    """Inputs of the decoder that take the mask of the source."""
    start: int
    end: int | None
    pad: int
    vocab_size: int
    limit: int
    """Tokens that a source may have, with its end."""
    limit_source: str

    @classmethod
    def of(
        cls, contract: GraphContract, part: SourceEncoder, *, pad: int | None, limit: int, limit_source: str
    ) -> SourceText:
        """The text of a source for a contract that has an encoder.

        Args:
            contract: Of the decoder.
            part: Of the package.
            pad: Id that fills up a source for a graph of a fixed width; None takes 0.
            limit: Tokens that the model takes; 0 if that is not known, which takes a default.
            limit_source: Where the limit comes from.
        """
        if contract.encoder is None:
            raise InvalidArgumentError(f"{contract.model_path}: has no encoder")
        masks = tuple((cross.input, cross.dtype) for cross in contract.cross if cross.source == "request")
        return cls(
            graph=contract.encoder,
            masks=masks,
            start=part.start_token_id,
            end=part.end_token_id,
            pad=0 if pad is None else pad,
            vocab_size=contract.vocab_size,
            limit=limit or _DEFAULT_LIMIT,
            limit_source=limit_source if limit else "the default where no limit is known; max_context gives another",
        )

    def prompt(self, answer: Sequence[int]) -> npt.NDArray[np.int64]:
        """What the decoder begins with, before an answer of which this much is written."""
        return np.asarray([self.start, *answer], dtype=np.int64)

    def tensors(self, ids: npt.NDArray[np.int64]) -> _core.EncoderInputs:
        """What the encoder reads, and the masks of the decoder.

        Args:
            ids: int64 ``[tokens]``; the end is added if the package wants one and they have none.

        Raises:
            InvalidArgumentError: No ids, or ids out of range.
            ContextOverflowError: More than the model or the encoder's graph takes.
        """
        if len(ids) == 0:
            raise InvalidArgumentError("the prompt is empty; give at least one token")
        if self.vocab_size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            wrong = next(place for place, token in enumerate(ids) if not 0 <= token < self.vocab_size)
            raise InvalidArgumentError(
                f"prompt token {wrong} has id {ids[wrong]}; allowed: 0..{self.vocab_size - 1}. The tokenizer may not "
                "belong to this model."
            )
        if self.end is not None and ids[-1] != self.end:
            ids = np.append(ids, np.int64(self.end))
        width = self.graph.width or len(ids)
        if len(ids) > width:
            raise ContextOverflowError(
                f"the source has {len(ids)} tokens with its end; {self.graph.model_path.name} takes {width}"
            )
        if len(ids) > self.limit:
            raise ContextOverflowError(
                f"the source has {len(ids)} tokens with its end; the limit is {self.limit} ({self.limit_source}). "
                "Shorten it, or give it in parts."
            )
        row = np.full((1, width), self.pad, dtype=np.int64)
        row[0, : len(ids)] = ids
        mask = np.zeros((1, width), dtype=np.int64)
        mask[0, : len(ids)] = 1
        rows = {"input_ids": row, "attention_mask": mask}
        tensors = {port.name: rows[port.role].astype(_TYPES[port.dtype]) for port in self.graph.inputs}
        tensors.update({name: mask.astype(_TYPES[dtype]) for name, dtype in self.masks})
        return _core.EncoderInputs(tensors=list(tensors.items()), num_tokens=len(ids))
