"""A loaded model: :class:`Model`."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from onnx_genai.compat.config import Config, config_of
from onnx_genai.compat.unsupported import refuse
from onnx_genai.engine import EngineOptions, ModelEngine
from onnx_genai.errors import ContextOverflowError, InvalidArgumentError, UnsupportedError
from onnx_genai.tokenizer import Tokenizer as PlainTokenizer
from onnx_genai.tokenizer import TokenTableData

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from onnx_genai.compat.generator import GeneratorParams

__all__ = ["Model"]


class Model:
    """A loaded model. Safe to use from many threads; generators share it.

    Args:
        source: A package folder, the alias of a pulled model, or a :class:`Config`.

    Raises:
        NotFoundError, PackageError, UnsupportedError, BackendError: It cannot be used; the text says why.
    """

    def __init__(self, source: Config | str | Path) -> None:
        config = config_of(source)
        self.config = config
        self.package = config.package()
        path = self.package.tokenizer_path
        table = TokenTableData.empty() if path is None else PlainTokenizer.from_file(path).token_table()
        provider, options = config.provider()
        try:
            self.engine = ModelEngine.open(
                self.package, table, EngineOptions(ep=provider, ep_options=options, backend=config.backend())
            )
        except UnsupportedError as error:
            if provider == "cpu":
                raise
            hint = "To run on the CPU instead, call clear_providers() on the Config before Model(config)."
            raise UnsupportedError(f"{error} {hint}") from error
        self._provider = provider

    @property
    def type(self) -> str:
        """The model type that the package states, such as ``llama``; empty if it states none."""
        return self.package.model_type or ""

    @property
    def device_type(self) -> str:
        """The execution provider in use, in upper case, such as ``CPU``."""
        return self._provider.upper()

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.engine.vocab_size

    @property
    def declared_vocab_size(self) -> int:
        """Ids that the package says there are, which may be fewer than the graph has."""
        return self.package.vocab_size or self.vocab_size

    @property
    def context_limit(self) -> int | None:
        """Tokens that prompt and output may have together; None if nothing limits them."""
        return self.engine.context_limit

    def check_length(self, max_length: int) -> None:
        """Raises ContextOverflowError if so many tokens do not fit the model."""
        limit = self.context_limit
        if limit is not None and max_length > limit:
            raise ContextOverflowError(
                f"max_length is {max_length}; allowed: at most {limit}, from {self.engine.context_source}"
            )

    def generate(self, params: GeneratorParams) -> list[npt.NDArray[np.int32]]:
        """The call of early versions: generates all rows of ``params.input_ids`` and returns their ids.

        Deprecated: make a :class:`Generator`, which can also stream.
        """
        from onnx_genai.compat.generator import Generator  # generators import models

        warnings.warn("Model.generate is a call of early versions; use Generator", DeprecationWarning, stacklevel=2)
        if params.input_ids is None:
            raise InvalidArgumentError("params.input_ids is not set; set it, or use Generator.append_tokens")
        generator = Generator(self, params)
        while not generator.is_done():
            generator.generate_next_token()
        return [generator.get_sequence(index) for index in range(generator.sequence_count())]

    def create_multimodal_processor(self) -> None:
        """Raises ``UnsupportedError``: only text models run."""
        refuse("a multimodal processor", "only text models run; use Tokenizer(model) for text")

    def create_streaming_processor(self) -> None:
        """Raises ``UnsupportedError``: speech models do not run yet."""
        refuse("a streaming processor", "speech models do not run yet")

    def close(self) -> None:
        """Ends what runs and frees the model; a second call does nothing."""
        self.engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: builtins.type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
