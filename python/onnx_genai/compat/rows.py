"""The token ids of a batch, column by column: :class:`Rows`, and :func:`read_tokens` that checks what is appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_genai.compat.padding import find_padding
from onnx_genai.compat.tensor import Tensor
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.words import counted

__all__ = ["Block", "Expected", "Rows", "read_tokens"]

_REAL, _PAD, _HIDDEN = 0, 1, 2
"""A token; padding that the caller gave or gets; padding that only makes rows of a list equally long."""

Block = tuple[list[list[int]], list[list[int]]]
"""Ids and what they are, both ``[batch, seq]``."""


class Rows:
    """Rows of equal width. Padding keeps its column, so lengths are those of the padded batch."""

    def __init__(self, count: int) -> None:
        self._ids: list[list[int]] = [[] for _ in range(count)]
        self._kinds: list[list[int]] = [[] for _ in range(count)]
        self._ended: list[int | None] = [None] * count
        """Column of the end token of a row; the width if that token was left out."""

    @property
    def count(self) -> int:
        return len(self._ids)

    @property
    def width(self) -> int:
        """Tokens and padding of each row."""
        return len(self._ids[0])

    @property
    def all_ended(self) -> bool:
        return all(column is not None for column in self._ended)

    def has_ended(self, row: int) -> bool:
        """Whether the row is finished."""
        return self._ended[row] is not None

    def real(self, row: int, width: int | None = None) -> list[int]:
        """Ids that the model sees, of the first ``width`` columns; None is all."""
        ids, kinds = self._ids[row][:width], self._kinds[row][:width]
        return [token for token, kind in zip(ids, kinds, strict=True) if kind == _REAL]

    def shown(self, row: int) -> npt.NDArray[np.int32]:
        """Ids that the caller sees: int32 ``[seq]``, with the padding that the caller gave or that follows an end."""
        pairs = zip(self._ids[row], self._kinds[row], strict=True)
        return np.asarray([token for token, kind in pairs if kind != _HIDDEN], dtype=np.int32)

    def columns(self, columns: range) -> npt.NDArray[np.int32]:
        """What stands in these columns, padding included: int32 ``[rows, len(columns)]``."""
        return np.asarray([ids[columns.start : columns.stop] for ids in self._ids], dtype=np.int32)

    def is_real(self, row: int, column: int) -> bool:
        """Whether a column of a row holds a token and no padding."""
        return self._kinds[row][column] == _REAL

    def append(self, block: Block) -> None:
        """Adds columns; rows that had ended go on."""
        for row, (ids, kinds) in enumerate(zip(*block, strict=True)):
            self._ids[row].extend(ids)
            self._kinds[row].extend(kinds)
        self._ended = [None] * self.count

    def add_column(self, tokens: Sequence[int | None], ends: frozenset[int], pad: int) -> None:
        """Adds one token to each row; None is padding after an end. If now all rows have ended, nothing is added."""
        for row, token in enumerate(tokens):
            if token in ends:
                self._ended[row] = self.width
        if self.all_ended and any(token in ends for token in tokens):
            return
        for row, token in enumerate(tokens):
            self._ids[row].append(pad if token is None else token)
            self._kinds[row].append(_PAD if token is None else _REAL)

    def cut(self, width: int) -> None:
        """Drops all columns from ``width`` on; a row whose end token is dropped is open again."""
        for row in range(self.count):
            del self._ids[row][width:]
            del self._kinds[row][width:]
        self._ended = [column if column is not None and column < width else None for column in self._ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What tokens have to fit."""

    batch: int
    """How many rows there are."""
    pad: int | None
    """The id that pads arrays, if there is one."""
    ends: frozenset[int]
    """Ids that end a row."""
    vocab: int
    """Ids are below it; 0 checks nothing."""


def read_tokens(tokens: Tensor | npt.NDArray[Any] | Sequence[Any], mask: Any, expected: Expected) -> Block:
    """Checks what ``append_tokens`` was given.

    Args:
        tokens: Ids ``[seq]`` for one row or ``[batch, seq]``, or a list of lists, which may differ in length.
        mask: Of the same shape, 0 for padding; None finds the padding, see ``Generator.append_tokens``.
        expected: What they have to fit.

    Raises:
        InvalidArgumentError: Wrong type, shape or id.
    """
    if isinstance(tokens, Tensor):
        mask = tokens.mask if mask is None else mask
        tokens = tokens.as_numpy()
    if isinstance(tokens, np.ndarray):
        ids = _array_rows(tokens, expected.batch)
        kinds = _masked(ids, mask) if mask is not None else _padded(ids, expected)
    else:
        ids = _list_rows(tokens, expected.batch)
        kinds = _masked(ids, mask) if mask is not None else [[_REAL] * len(row) for row in ids]
    for index, row in enumerate(ids):
        for column, token in enumerate(row):
            # Padding never reaches the model, so any id may stand there.
            if kinds[index][column] == _REAL and not 0 <= token < (expected.vocab or 2**31):
                raise InvalidArgumentError(
                    f"token {column} of row {index} is {token}; allowed: 0..{expected.vocab - 1}"
                )
        if _REAL not in kinds[index]:
            raise InvalidArgumentError(f"row {index} has no token that is not padding; give at least one")
    width = max(len(row) for row in ids)
    return (
        [[0] * (width - len(row)) + row for row in ids],
        [[_HIDDEN] * (width - len(row)) + own for row, own in zip(ids, kinds, strict=True)],
    )


def _array_rows(array: npt.NDArray[Any], batch: int) -> list[list[int]]:
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"tokens have dtype {array.dtype}; allowed: int32 or int64")
    if array.ndim == 1 and batch == 1:
        array = array.reshape(1, -1)
    if array.ndim != 2 or array.shape[0] != batch or array.shape[1] == 0:
        raise InvalidArgumentError(
            f"tokens have shape {list(array.shape)}; allowed with batch_size={batch}: [{batch}, n], n >= 1"
        )
    rows: list[list[int]] = array.tolist()
    return rows


def _list_rows(tokens: Any, batch: int) -> list[list[int]]:
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
        raise InvalidArgumentError(f"tokens are {type(tokens).__name__}; allowed: an array of ids, or a list")
    nested = len(tokens) > 0 and all(isinstance(row, (Sequence, np.ndarray)) for row in tokens)
    rows = [list(row) for row in tokens] if nested else [list(tokens)]
    if len(rows) != batch or any(not row for row in rows):
        raise InvalidArgumentError(
            f"tokens have {counted(len(rows), 'row')} of {[len(row) for row in rows]} ids; allowed: batch_size={batch} "
            "rows that are not empty (set batch_size with set_search_options)"
        )
    for index, row in enumerate(rows):
        for column, token in enumerate(row):
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
                raise InvalidArgumentError(f"token {column} of row {index} is {token!r}; allowed: an int")
    return [[int(token) for token in row] for row in rows]


def _masked(ids: list[list[int]], mask: Any) -> list[list[int]]:
    given = [mask] if np.ndim(mask[0]) == 0 else mask
    rows = [[bool(each) for each in row] for row in given]
    if [len(row) for row in rows] != [len(row) for row in ids]:
        raise InvalidArgumentError(
            f"attention_mask has rows of {[len(row) for row in rows]} for tokens of {[len(row) for row in ids]}; "
            "allowed: one value for each token"
        )
    return [[_REAL if each else _PAD for each in row] for row in rows]


def _padded(ids: list[list[int]], expected: Expected) -> list[list[int]]:
    sides = find_padding(ids, expected.pad, expected.ends)
    return [
        [_PAD] * left + [_REAL] * (len(row) - left - right) + [_PAD] * right
        for row, (left, right) in zip(ids, sides, strict=True)
    ]
