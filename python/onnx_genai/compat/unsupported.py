"""Names that exist so that a script gets as far as it can, and then is told why it cannot go on."""

from __future__ import annotations

from typing import NoReturn

from onnx_genai.errors import UnsupportedError

__all__ = [
    "Audios",
    "Engine",
    "Images",
    "MtpGenerator",
    "MultiModalProcessor",
    "StreamingProcessor",
    "refuse",
]


def refuse(what: str, reason: str) -> NoReturn:
    """Raises the error of a part that this version does not have."""
    raise UnsupportedError(f"{what} is not available in onnx_genai.compat: {reason}")


class Images:
    """Images for a processor. Opening one raises ``UnsupportedError``."""

    @classmethod
    def open(cls, *paths: str) -> NoReturn:
        """Always raises ``UnsupportedError``."""
        refuse("Images.open", "only text models run; there is no image encoder")

    @classmethod
    def open_bytes(cls, *data: bytes) -> NoReturn:
        """Always raises ``UnsupportedError``."""
        refuse("Images.open_bytes", "only text models run; there is no image encoder")


class Audios:
    """Sounds for a processor. Opening one raises ``UnsupportedError``."""

    @classmethod
    def open(cls, *paths: str) -> NoReturn:
        """Always raises ``UnsupportedError``."""
        refuse("Audios.open", "only text models run; there is no audio encoder")

    @classmethod
    def open_bytes(cls, *data: bytes) -> NoReturn:
        """Always raises ``UnsupportedError``."""
        refuse("Audios.open_bytes", "only text models run; there is no audio encoder")


class MultiModalProcessor:
    """Images, sounds and text to inputs of a model. Making one raises ``UnsupportedError``."""

    def __init__(self, model: object) -> None:
        refuse("a multimodal processor", "only text models run; use Tokenizer(model) for text")


class StreamingProcessor:
    """Sound to inputs of a speech model. Making one raises ``UnsupportedError``."""

    def __init__(self, model: object) -> None:
        refuse("a streaming processor", "speech models do not run yet")


class Engine:
    """Many requests in one loop. Making one raises ``UnsupportedError``."""

    def __init__(self, model: object) -> None:
        refuse("Engine", "every model batches by itself; use onnx_genai.LLM or AsyncLLM from any number of threads")


class MtpGenerator:
    """Generation with a second head that drafts. Making one raises ``UnsupportedError``."""

    def __init__(self, main: object, head: object, params: object) -> None:
        refuse("MtpGenerator", "drafting heads do not run yet; use Generator(model, params)")
