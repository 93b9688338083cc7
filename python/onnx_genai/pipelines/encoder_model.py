"""What :class:`~onnx_genai.Embedder` and :class:`~onnx_genai.AsyncEmbedder` share: loading, prompts, limits, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from onnx_genai.engine import EncoderEngine, EncoderOptions, EncoderText, PromptIds, prompt_array, task_of
from onnx_genai.engine.providers import warn
from onnx_genai.errors import ContextOverflowError, GenAIError, InvalidArgumentError, UnsupportedError
from onnx_genai.package import ContextLimit, ModelPackage, read
from onnx_genai.package.encoder import DenseLayer, EncoderPackage, PoolingMode, read_encoder
from onnx_genai.pipelines.text_model import Prompt, is_single, locate
from onnx_genai.pipelines.vectors import Vectors, check_dimensions, finished, load_steps, sigmoid, similarity
from onnx_genai.tokenizer import Tokenizer, WholeText
from onnx_genai.types import RankedDocument

__all__ = ["EncoderModel", "ModelKind", "PreparedTexts", "model_kind", "weights_bytes"]

ModelKind = Literal["text", "embedding", "reranker"]
"""What a model makes of a text: more text, a vector, or a score of two texts."""

_QUERY_NAMES = ("query", "search_query")
_DOCUMENT_NAMES = ("document", "passage", "search_document")
"""Names that packages give to the prompts of the two sides of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTexts:
    """Texts that were tokenised and checked."""

    texts: tuple[EncoderText, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts, special tokens included."""
        return sum(len(text.ids) for text in self.texts)


def model_kind(model: str | Path, *, variant: str | None = None) -> ModelKind:
    """What kind of model a folder, file, alias or hub id is. Loads no weights.

    A package that cannot be read counts as text: opening it says what is wrong.
    """
    try:
        package = read(locate(model), variant=variant)
        task = task_of(package)
    except GenAIError:
        return "text"
    return "text" if task is None else "embedding" if task == "embed" else "reranker"


def weights_bytes(model: str | Path, *, variant: str | None = None) -> int:
    """Size of the files of a model's graph and weights; 0 for a package that cannot be read. Loads nothing."""
    try:
        return read(locate(model), variant=variant).weights_bytes
    except GenAIError:
        return 0


class EncoderModel:
    """A loaded encoder of texts; use :class:`~onnx_genai.Embedder` or :class:`~onnx_genai.AsyncEmbedder`.

    Args:
        model: A package folder, a file inside one, or an alias or hub id that was pulled before.
        ep: Execution providers, as for :class:`~onnx_genai.LLM`.
        ep_options: Options of the first provider.
        ep_strict: False goes on without a provider that cannot be used, with a warning.
        variant: Which of several graphs to take (``quantized``, ``fp16``, ...); None takes the one without a suffix.
        threads: Intra-op threads; None uses the physical cores that this process may use.
        max_batch_tokens: Tokens of one run, padding included. Larger runs use more memory, and Ctrl-C waits longer.
        max_length: Upper bound on the tokens of a text instead of the one that the package recommends; at most what
            the model was built for.
        pooling: How the vectors of a text's tokens become one: ``mean``, ``cls``, ``max``, ``last``,
            ``weighted_mean``, ``mean_sqrt``. None takes what the package says, and the mean if it says nothing.

    Raises:
        NotFoundError: There is no such model.
        InvalidArgumentError: An option has a value that is not allowed.
        UnsupportedError: It is a language model, or of a kind that cannot run; the text says which.
        PackageError, BackendError: It cannot be used; the text says why and what to do.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        ep: str = "cpu",
        ep_options: Mapping[str, str] | None = None,
        ep_strict: bool = True,
        variant: str | None = None,
        threads: int | None = None,
        max_batch_tokens: int = 2048,
        max_length: int | None = None,
        pooling: PoolingMode | None = None,
    ) -> None:
        if pooling is not None and pooling not in get_args(PoolingMode):
            raise InvalidArgumentError(f"pooling is {pooling!r}; allowed: {', '.join(get_args(PoolingMode))}, or None")
        options = EncoderOptions(
            ep=ep,
            ep_options={} if ep_options is None else ep_options,
            ep_strict=ep_strict,
            threads=threads,
            max_batch_tokens=max_batch_tokens,
        )
        self._source = read_encoder(locate(model), variant=variant)
        self._limit = _chosen_limit(self._source, max_length)
        self.tokenizer = Tokenizer.from_file(self.package.require_tokenizer())
        pad = self.tokenizer.pad_id if self.tokenizer.pad_id is not None else self.package.pad_token_id
        self._engine = EncoderEngine.open(
            self._source,
            options,
            pooling=(pooling,) if pooling is not None else self._source.pooling or ("mean",),
            prefer_tokens=pooling is not None or not self._source.pools_prompt,
            pad_id=pad or 0,
        )
        self._pooling_source = self._who_says_pooling(pooling)
        self._steps, self._width = load_steps(self._layers(), self._engine.width)

    @property
    def package(self) -> ModelPackage:
        """What the package says about itself."""
        return self._source.package

    @property
    def kind(self) -> ModelKind:
        """``embedding``, or ``reranker`` for a model that scores a query with a document."""
        return "embedding" if self._engine.task == "embed" else "reranker"

    @property
    def width(self) -> int:
        """Values of a vector; 1 for a reranker."""
        return self._width

    @property
    def max_length(self) -> int | None:
        """Tokens that a text may have, special tokens and prompt included; None if nothing limits it."""
        return None if self._limit is None else self._limit.tokens

    @property
    def prompts(self) -> Mapping[str, str]:
        """The package's prompts by name: texts that are put before a text, according to its purpose."""
        return dict(self._source.prompts)

    @property
    def closed(self) -> bool:
        return self._engine.closed

    def info(self) -> dict[str, object]:
        """Facts about the loaded model: kind, width, limit, pooling and who says it, execution provider, threads."""
        return {
            "kind": self.kind,
            "width": self.width,
            "max_length": self.max_length,
            "max_length_source": "" if self._limit is None else self._limit.source,
            "pooling": ", ".join(self._engine.pooling) or None,
            "pooling_source": self._pooling_source,
            "normalizes": self.kind == "embedding" and "normalize" in self._steps,
            **self._engine.info(),
        }

    def metrics(self) -> dict[str, float]:
        """Totals since the model was loaded: texts, tokens, padding, runs and seconds in them."""
        return self._engine.metrics()

    def count_tokens(
        self, texts: Prompt | Sequence[Prompt], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> list[int]:
        """Tokens of each text, with special tokens and prompt, however many they are."""
        return [len(text.ids) for text in self._whole(texts, prompt_name, prompt)]

    def prepare(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> PreparedTexts:
        """Tokenises texts and checks them, for ``embed_prepared``; arguments as for ``embed``."""
        self._need("embedding")
        _check_bool("truncate", truncate)
        whole = self._whole(texts, prompt_name, prompt)
        num_skipped = self._prompt_tokens(prompt_name, prompt)
        return PreparedTexts(
            texts=tuple(self._fitted(text, number, truncate, num_skipped) for number, text in enumerate(whole))
        )

    def prepare_pairs(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> PreparedTexts:
        """Tokenises what ``rerank`` needs: pairs for a reranker, else the query and then the documents."""
        _check_bool("truncate", truncate)
        _check_documents(query, documents)
        if self.kind == "reranker":
            pairs = [(query, document) for document in documents]
            # A query that is too long is found at the first pair, and not tokenised once for each document.
            for first in self.tokenizer.encode_whole(pairs[:1]):
                self._fitted(first, 0, truncate)
            whole = self.tokenizer.encode_whole(pairs)
            return PreparedTexts(texts=tuple(self._fitted(text, number, truncate) for number, text in enumerate(whole)))
        sides = [([query], self._side_prompt(_QUERY_NAMES)), (documents, self._side_prompt(_DOCUMENT_NAMES))]
        parts = [self.prepare(texts, prompt_name=name, truncate=truncate).texts for texts, name in sides]
        return PreparedTexts(texts=(*parts[0], *parts[1]))

    def _layers(self) -> Sequence[DenseLayer | Literal["normalize"]]:
        """What follows the engine's vectors; a graph with an output for a whole text did it already."""
        source = self._source
        if self.kind == "reranker":
            return []
        if not self._engine.pooling:
            return ["normalize"] if "normalize" in source.after_pooling or not source.has_modules else []
        if not source.has_modules:
            return ["normalize"]
        return source.after_pooling

    def _who_says_pooling(self, chosen: PoolingMode | None) -> str:
        if not self._engine.pooling:
            return "the graph"
        if chosen is not None:
            return "the argument pooling"
        if not self._source.pooling_source:
            warn(
                f"{self.package.root.name}: no file says how the vectors of tokens become one; the mean is taken. Put "
                "the 1_Pooling folder of the original model into the package, or set pooling"
            )
        return self._source.pooling_source or "nothing says it, so the mean is taken"

    def _finished(self, vectors: Vectors, normalize: bool | None, dimensions: int | None) -> Vectors:
        return finished(vectors, self._steps, normalize=normalize, dimensions=dimensions)

    def _check_result(self, normalize: object, dimensions: object) -> int | None:
        if normalize is not None:
            _check_bool("normalize", normalize)
        return check_dimensions(dimensions, self.width)

    def _ranked(
        self, vectors: Vectors, documents: Sequence[str], *, top_n: int | None, raw_scores: bool
    ) -> list[RankedDocument]:
        """Documents by score, best first; equal ones in their order."""
        if self.kind == "reranker":
            scores = vectors[:, 0] if raw_scores else sigmoid(vectors[:, 0])
        else:
            finished_ = self._finished(vectors, None, None)
            scores = similarity(finished_[:1], finished_[1:])
        order = np.argsort(-scores, kind="stable")[: len(documents) if top_n is None else top_n]
        return [
            RankedDocument(index=int(place), score=float(scores[place]), document=documents[place]) for place in order
        ]

    def _need(self, kind: ModelKind) -> None:
        if self.kind != kind:
            raise UnsupportedError(
                f"{self.package.root.name} is a reranker: it scores a query with a document, and makes no vectors. Use "
                "rerank(), or an embedding model."
            )

    def _whole(self, texts: Prompt | Sequence[Prompt], prompt_name: str | None, prompt: str | None) -> list[WholeText]:
        before = self._prompt_text(prompt_name, prompt)
        many: Sequence[Prompt] = [texts] if is_single(texts) else texts  # type: ignore[assignment, list-item]
        written: list[str | tuple[str, str]] = [before + text for text in many if isinstance(text, str)]
        tokenised = iter(self.tokenizer.encode_whole(written))
        return [
            next(tokenised) if isinstance(text, str) else self._given(text, number) for number, text in enumerate(many)
        ]

    def _given(self, ids: PromptIds, number: int) -> WholeText:
        """Ids are taken as they are."""
        array = prompt_array(ids)
        high = self.package.vocab_size or self.tokenizer.vocab_size
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < high:
            raise InvalidArgumentError(f"text {number} has a token id beyond the vocabulary; allowed: 0..{high - 1}")
        return WholeText(ids=array.astype(np.int32), start=0, end=len(array))

    def _fitted(self, text: WholeText, number: int, truncate: bool, num_skipped: int = 0) -> EncoderText:
        """The text within the limit.

        Raises:
            InvalidArgumentError: It has no token.
            ContextOverflowError: It is too long, and ``truncate`` is not set.
        """
        if not len(text.ids):
            raise InvalidArgumentError(f"text {number} has no token; allowed: at least one")
        limit = self._limit
        if limit is not None and len(text.ids) > limit.tokens:
            cut = text.cut(limit.tokens) if truncate else None
            if cut is None:
                why = "even without its last text; shorten the query" if truncate else "shorten or split it, or pass"
                more = "" if truncate else " truncate=True to cut its end off"
                raise ContextOverflowError(
                    f"text {number} has {len(text.ids)} tokens, {limit.source} allows {limit.tokens}: {why}{more}"
                )
            text = cut
        return EncoderText(ids=text.ids, types=text.types, num_skipped=num_skipped)

    def _prompt_text(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            if name is not None:
                raise InvalidArgumentError(f"prompt_name is {name!r} and prompt is given, too; give only one of them")
            if not isinstance(prompt, str):
                raise InvalidArgumentError(f"prompt is a {type(prompt).__name__}; allowed: text, or None")
            return prompt
        name = self._source.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self._source.prompts:
            known = ", ".join(self._source.prompts) or "none"
            raise InvalidArgumentError(f"prompt_name is {name!r}; the package's prompts are: {known}")
        return self._source.prompts[name]

    def _prompt_tokens(self, name: str | None, prompt: str | None) -> int:
        """Leading tokens that pooling leaves out."""
        text = "" if self._source.pools_prompt else self._prompt_text(name, prompt)
        return self.tokenizer.encode_whole([text])[0].end if text else 0

    def _side_prompt(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._source.prompts), None)


def _chosen_limit(source: EncoderPackage, max_length: int | None) -> ContextLimit | None:
    if max_length is None:
        return source.limit
    hard = source.hard_limit
    high = hard.tokens if hard is not None else 2**31 - 1
    if isinstance(max_length, bool) or not isinstance(max_length, int) or not 1 <= max_length <= high:
        why = f" ({hard.source})" if hard is not None else ""
        raise InvalidArgumentError(f"max_length is {max_length!r}; allowed: a whole number in 1..{high}{why}")
    return ContextLimit(tokens=max_length, source="the argument max_length")


def _check_documents(query: object, documents: object) -> None:
    if not isinstance(query, str):
        raise InvalidArgumentError(f"query is a {type(query).__name__}; allowed: a text")
    if isinstance(documents, (str, bytes)) or not isinstance(documents, Sequence):
        raise InvalidArgumentError(f"documents is a {type(documents).__name__}; allowed: a list of texts")
    for number, document in enumerate(documents):
        if not isinstance(document, str):
            raise InvalidArgumentError(f"documents[{number}] is a {type(document).__name__}; allowed: a text")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: True or False")


def check_top_n(top_n: object) -> None:
    """Raises InvalidArgumentError unless ``top_n`` is None or a whole number above 0."""
    if top_n is None:
        return
    if isinstance(top_n, bool) or not isinstance(top_n, (int, np.integer)) or top_n < 1:
        raise InvalidArgumentError(f"top_n is {top_n!r}; allowed: a whole number >= 1, or None for all")
