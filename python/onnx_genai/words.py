"""Numbers with their nouns, for messages: :func:`counted`."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """The number and the form of the noun that goes with it.

    Args:
        number: How many.
        noun: For exactly one.
        plural: For any other number; None adds an s to ``noun``.

    Example:
        >>> counted(1, "token"), counted(0, "token"), counted(2, "entry", "entries"), counted(1.5, "core")
        ('1 token', '0 tokens', '2 entries', '1.5 cores')
    """
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {noun if number == 1 else plural or f'{noun}s'}"
