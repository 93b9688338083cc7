"""Draft tokens out of a text's own past: :class:`NgramProposer`."""

from __future__ import annotations

from onnx_genai import _core
from onnx_genai.engine.model_engine import PromptIds, prompt_array
from onnx_genai.errors import InvalidArgumentError

__all__ = ["NgramProposer"]


class NgramProposer:
    """Guesses what comes next in a sequence: if its last ``order - 1`` tokens stand earlier in it, what followed the
    latest such place. No model runs. One thread at a time.

    Args:
        order: Tokens of an n-gram, the context and the one that follows it; at least 2.

    Raises:
        InvalidArgumentError: A smaller order.

    Example:
        >>> proposer = NgramProposer(3)
        >>> proposer.extend([1, 2, 3, 1, 2])
        >>> proposer.propose(3)
        [3, 1, 2]
    """

    def __init__(self, order: int) -> None:
        if isinstance(order, bool) or not isinstance(order, int) or order < 2:
            raise InvalidArgumentError(f"order is {order!r}; allowed: an int of 2 or more, a token and its context")
        self._proposer = _core.NgramProposer(order)

    def extend(self, tokens: PromptIds) -> None:
        """Adds tokens to the sequence: the prompt, then what was accepted.

        Raises:
            InvalidArgumentError: Wrong type, dtype or id.
        """
        self._proposer.extend(prompt_array(tokens).tolist())

    def truncate(self, size: int) -> None:
        """Keeps the first ``size`` tokens.

        Raises:
            InvalidArgumentError: There are fewer.
        """
        if not 0 <= size <= len(self):
            raise InvalidArgumentError(f"size is {size}; allowed: 0..{len(self)}, the tokens there are")
        self._proposer.truncate(size)

    def propose(self, limit: int, *, chained: bool = False) -> list[int]:
        """Tokens that may come next; none if their context is new.

        Args:
            limit: At most so many, 0 or more.
            chained: Look each further token up again, the draft so far included; else copy what followed the first
                place found, up to the end of the sequence.

        Raises:
            InvalidArgumentError: A negative limit.
        """
        if limit < 0:
            raise InvalidArgumentError(f"limit is {limit}; allowed: 0 or more tokens")
        return self._proposer.propose(limit, _core.DraftStyle.chained if chained else _core.DraftStyle.copied)

    def __len__(self) -> int:
        """Tokens of the sequence."""
        return len(self._proposer)
