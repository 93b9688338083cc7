"""Generation token by token: :class:`GeneratorParams` and :class:`Generator`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from onnx_genai.compat.adapters import Adapters
from onnx_genai.compat.beams import Beams
from onnx_genai.compat.guidance import Guidance, check_guidance
from onnx_genai.compat.model import Model
from onnx_genai.compat.rows import Expected, Rows, read_tokens
from onnx_genai.compat.search import SearchOptions, read_options
from onnx_genai.compat.steps import Context, Steps
from onnx_genai.compat.tensor import NamedTensors, Tensor
from onnx_genai.compat.unsupported import refuse
from onnx_genai.errors import ContextOverflowError, InvalidArgumentError, UnsupportedError
from onnx_genai.words import counted

__all__ = ["Generator", "GeneratorParams"]

_UNSTATED_LENGTH = 2048
"""``max_length`` where neither the package nor the graph says anything."""
_SOURCE_IS_FIXED = "its source is fixed then; rewind_to() the source, or make a new Generator"
_MOST_POSITIONS = 1024
"""Positions whose logits ``get_output`` computes, one request each."""

Tokens = Tensor | npt.NDArray[Any] | Sequence[Any]


class GeneratorParams:
    """Options of a generation, with the package's own as defaults.

    Args:
        model: What is to generate.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, Model):
            raise InvalidArgumentError(f"model is {type(model).__name__}; allowed: a Model")
        self._model = model
        self.options = _defaults(model)
        self._default_top_k = self.options.top_k
        self.guidance: Guidance | None = None
        self.input_ids: Tokens | None = None
        """Prompt ids as early versions took them; ``Generator.append_tokens`` takes them now."""

    def set_search_options(self, **options: bool | int | float) -> None:
        """Sets options; their names, meaning and limits are those of :class:`~onnx_genai.compat.search.SearchOptions`.

        Raises:
            InvalidArgumentError: An unknown name, a wrong type or a value out of range; nothing is set then.
        """
        changed = self.options.changed(options)
        self._model.check_length(changed.max_length)
        vocab = self._model.declared_vocab_size
        if changed.top_k > vocab and changed.top_k != self._default_top_k:
            raise InvalidArgumentError(f"top_k is {changed.top_k}; allowed: at most {vocab}, the vocabulary, or 0")
        self.options = changed

    def get_search_options(self) -> dict[str, bool | int | float]:
        """All options by name."""
        return self.options.values()

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:
        """Constrains what is generated to a ``json_schema``, ``regex`` or ``lark_grammar``.

        Raises:
            InvalidArgumentError: Another type, or no JSON schema. What else is wrong with a grammar is said when
                generating begins.
        """
        guidance = Guidance(kind=type, data=data, fast_forward=enable_ff_tokens)
        check_guidance(guidance)
        self.guidance = guidance

    def set_speculative_options(self, **options: object) -> None:
        """Raises ``UnsupportedError``: nothing is drafted."""
        refuse("set_speculative_options", "nothing is drafted; leave the call out, the tokens are the same")

    def get_speculative_options(self) -> dict[str, object]:
        """Empty: nothing is drafted."""
        return {}

    def try_graph_capture_with_max_batch_size(self, max_batch_size: int) -> None:
        """A call of early versions; does nothing."""
        warnings.warn("graph capture cannot be asked for; the call does nothing", DeprecationWarning, stacklevel=2)


class Generator:
    """Generates token by token for a batch of rows. One thread at a time.

    Args:
        model: What generates.
        params: Options; later changes to them do not count.

    Raises:
        InvalidArgumentError: Options that do not fit the model.
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        if not isinstance(model, Model) or not isinstance(params, GeneratorParams):
            raise InvalidArgumentError(
                f"got {type(model).__name__} and {type(params).__name__}; allowed: a Model and its GeneratorParams"
            )
        self._model = model
        self._options = params.options
        _check_fit(model, self._options)
        self._ends = frozenset(token for token in model.package.eos_token_ids if token < model.vocab_size)
        pad = model.package.pad_token_id
        self._pad = pad if pad is not None else next(iter(model.package.eos_token_ids), None)
        self._expected = Expected(
            batch=self._options.batch_size, pad=self._pad, ends=self._ends, vocab=model.vocab_size
        )
        self._rows = Rows(self._options.batch_size)
        self._steps = Steps(model, self._options, self._ends, params.guidance)
        self._next: list[int] | None = None
        self._logits: npt.NDArray[np.float32] | None = None
        """Logits of the next token, float32 ``[rows, vocab]``, if they were asked for or set."""
        self._is_set = False
        self._last_run = range(0)
        """Columns that the model ran last."""
        self._adapters: Adapters | None = None
        self._beams: Beams | None = None
        """The beam search, if one has begun; ``_rows`` then keeps the prompts."""
        self._is_early = False
        """The prompt came with the parameters."""
        if params.input_ids is not None:
            self.append_tokens(params.input_ids)
            self._is_early = True

    def append_tokens(self, tokens: Tokens, *, attention_mask: Any = None) -> None:
        """Adds tokens to every row: the prompt, or the next turn. In the middle of a guided answer they are a piece of
        it, if the guidance allows them there; else another answer begins behind them.

        An array ``[batch, seq]`` may be padded with ``pad_token_id``, on the left or on the right: what the model sees
        are the tokens between. What every row has at the same end is taken for text, and so is a single pad id at the
        end of rows where it is also an end id and no row has two of them. A :class:`Tensor` of
        ``Tokenizer.encode_batch`` knows its padding. A list of lists has none; its rows may differ in length.

        Args:
            tokens: Ids ``[seq]`` (one row), ``[batch, seq]``, a Tensor of those, or a list of lists.
            attention_mask: Of the same shape, 0 for padding; says so itself instead.

        Raises:
            InvalidArgumentError: Wrong type, shape or id; nothing is added.
            ContextOverflowError: More than ``max_length`` tokens.
        """
        if self._beams is not None:
            raise InvalidArgumentError("the beam search has begun; rewind_to the prompt or make a new Generator")
        source = self._steps.source_width
        if source is not None and self._rows.width > source:
            refuse("append_tokens after an answer of an encoder-decoder has begun", _SOURCE_IS_FIXED)
        block = read_tokens(tokens, attention_mask, self._expected)
        width, new = self._rows.width, len(block[0][0])
        if width + new > self._options.max_length:
            raise ContextOverflowError(
                f"{counted(new, 'token')} after {width} are more than max_length, which is {self._options.max_length}; "
                "set a larger one with set_search_options, or append fewer tokens"
            )
        self._is_early = False
        self._changed()
        self._steps.append(self._rows)
        self._rows.append(block)
        self._last_run = range(width, width + new)
        if source is not None:  # the decoder runs its start token alone
            self._steps.source_width = self._rows.width
            self._last_run = range(self._rows.width - 1, self._rows.width)

    def set_inputs(self, inputs: NamedTensors) -> None:
        """Appends ``input_ids`` (with ``attention_mask``, if it is there).

        Raises:
            UnsupportedError: There are other tensors.
        """
        others = sorted(set(inputs.keys()) - {"input_ids", "attention_mask"})
        if others:
            refuse(f"the input {others[0]}", "only text models run; they take input_ids")
        mask = inputs["attention_mask"].as_numpy() if "attention_mask" in inputs else None
        self.append_tokens(inputs["input_ids"], attention_mask=mask)

    def is_done(self) -> bool:
        """Whether every row has ended, or ``max_length`` is reached."""
        if self._beams is not None:
            return self._beams.is_done
        return self._rows.width > 0 and (self._rows.all_ended or self._rows.width >= self._options.max_length)

    def generate_next_token(self) -> None:
        """Makes the next token of each row that has not ended; with beams of each beam.

        Raises:
            InvalidArgumentError: There is no prompt, or generation is done.
            GenAIError: The engine failed.
        """
        self._check_prompt()
        if self.is_done():
            raise InvalidArgumentError(
                f"generation is done with {self._rows.width} tokens (max_length {self._options.max_length}); test "
                "is_done() before generate_next_token()"
            )
        if self._options.is_beam_search:
            if self._beams is None:
                self._beams = Beams(self._steps, self._rows, self._beams_a_row)
            self._beams.advance()
            self._logits = None
            return
        if self._is_set and self._logits is not None:
            self._steps.forget()
            tokens = self._steps.choose(self._rows, self._logits)
        else:
            tokens = self._steps.next_tokens(self._rows)
        pad = 0 if self._pad is None else self._pad
        self._next = [pad if token is None else token for token in tokens]
        self._last_run = range(self._rows.width - 1, self._rows.width)
        self._rows.add_column(tokens, self._ends, pad)
        self._logits, self._is_set = None, False

    def get_next_tokens(self) -> npt.NDArray[np.int32]:
        """The tokens of the last step: int32 ``[rows]``. A row that ended before has ``pad_token_id``, the step that
        ends a row has its end token. With beams the last token of each beam, ``num_beams`` a row, best first; when the
        search is over, of each returned sequence.

        Raises:
            InvalidArgumentError: Nothing was generated.
        """
        if self._beams is not None:
            return np.asarray(self._beams.last_tokens(), dtype=np.int32)
        if self._next is None:
            raise InvalidArgumentError("nothing was generated; call generate_next_token() first")
        return np.asarray(self._next, dtype=np.int32)

    def get_sequence(self, index: int) -> npt.NDArray[np.int32]:
        """Prompt and generated tokens of a row, with the padding it was given: int32 ``[seq]``.

        A row that ended before others has its end token, then ``pad_token_id``. The end token that ends the whole
        batch is left out, as is that of a beam. With beams, row ``i`` has the sequences from
        ``i * num_return_sequences`` on, best first.

        Raises:
            InvalidArgumentError: There is no such sequence.
        """
        count = self.sequence_count()
        if isinstance(index, (bool, np.bool_)) or not isinstance(index, (int, np.integer)) or not 0 <= index < count:
            raise InvalidArgumentError(f"index is {index!r}; allowed: 0..{count - 1}, one for each sequence")
        return self._beam(int(index)) if self._beams is not None else self._rows.shown(int(index) // self._beams_a_row)

    def sequence_count(self) -> int:
        """How many sequences there are: ``batch_size * num_return_sequences``."""
        return self._rows.count * self._beams_a_row

    def token_count(self) -> int:
        """Tokens and padding of the longest sequence."""
        if self._beams is None:
            return self._rows.width
        return self._rows.width + self._beams.longest

    def rewind_to(self, new_length: int) -> None:
        """Forgets all tokens from ``new_length`` on, in every row. Ended rows go on if their end is forgotten, and a
        guided answer that is cut goes on where it was cut.

        Args:
            new_length: 0..token_count(); with beams at most the length of the prompt.

        Raises:
            InvalidArgumentError: Another length.
        """
        width = self._rows.width  # with beams that of the prompt
        whole = isinstance(new_length, (int, np.integer)) and not isinstance(new_length, bool)
        if not whole or not 0 <= new_length <= width:
            raise InvalidArgumentError(f"new_length is {new_length!r}; allowed: 0..{width}")
        self._changed()
        self._beams, self._next = None, None
        self._steps.cut(int(new_length))
        if self._steps.source_width is not None:
            self._steps.source_width = min(self._steps.source_width, int(new_length))
        self._rows.cut(int(new_length))
        self._last_run = range(max(self._rows.width - 1, 0), self._rows.width)

    def get_logits(self) -> npt.NDArray[np.float32]:
        """The model's logits of the next token, before any option: float32 ``[rows, 1, vocab]``, a copy.

        Rows that have ended are zero. With beams there are ``num_beams`` rows for each of the batch, best first. Runs
        the model once more than generation needs.

        Raises:
            InvalidArgumentError: There is no prompt, or the beam search is over.
        """
        self._check_prompt()
        if self._logits is None:
            contexts = self._contexts()
            found = iter(self._steps.logits([context for context in contexts if context is not None]))
            self._logits = np.zeros((len(contexts), self._model.vocab_size), dtype=np.float32)
            for row, context in enumerate(contexts):
                if context is not None:
                    logits = next(found)
                    self._logits[row, : len(logits)] = logits
        return self._logits[:, np.newaxis, :].copy()

    def set_logits(self, logits: npt.NDArray[np.float32]) -> None:
        """Replaces the logits of the next token; penalties and sampling then apply to these.

        Args:
            logits: float32 ``[rows, 1, vocab]`` or ``[rows, vocab]``.

        Raises:
            InvalidArgumentError: Wrong type or shape.
            UnsupportedError: With beams.
        """
        self._check_prompt()
        self._refuse_beams("set_logits")
        rows, vocab = self._rows.count, self._model.vocab_size
        array = np.asarray(logits)
        if array.dtype.kind != "f" or array.shape not in ((rows, 1, vocab), (rows, vocab)):
            raise InvalidArgumentError(
                f"logits are {array.dtype} {list(array.shape)}; allowed: float32 [{rows}, 1, {vocab}] or "
                f"[{rows}, {vocab}]"
            )
        self._logits = array.astype(np.float32).reshape(rows, vocab)
        self._is_set = True

    def get_output(self, name: str) -> npt.NDArray[np.float32]:
        """``logits`` of the last run: float32 ``[rows, seq, vocab]``.

        After ``append_tokens`` they are those of every appended token (padding is zero); after a step, those that the
        last token was chosen from.

        Raises:
            UnsupportedError: Another name; no other tensor of the model can be seen.
        """
        self._check_prompt()
        self._refuse_beams("get_output")
        if name != "logits":
            refuse(f"get_output({name!r})", "only logits can be seen")
        return self._logits_at(self._last_run)

    def get_input(self, name: str) -> npt.NDArray[np.int32]:
        """``input_ids`` of the last run: int32 ``[rows, seq]``; what pads the rows of a list is 0.

        Raises:
            UnsupportedError: Another name.
        """
        self._check_prompt()
        if name != "input_ids":
            refuse(f"get_input({name!r})", "only input_ids can be seen")
        return self._rows.columns(self._last_run)

    def set_model_input(self, name: str, value: object) -> NoReturn:
        """Raises ``UnsupportedError``: the engine makes all inputs of the model."""
        refuse(f"set_model_input({name!r})", "the engine makes all inputs of the model from its tokens")

    def set_hidden_states(self, value: object) -> NoReturn:
        """Raises ``UnsupportedError``; see :meth:`set_model_input`."""
        refuse("set_hidden_states", "the engine makes all inputs of the model from its tokens")

    def set_active_adapter(self, adapters: Adapters, name: str) -> None:
        """Runs all tokens from now on with an adapter, in place of the one before.

        What the model has run already stays: the tokens that were appended, and the generated ones but for the last,
        which runs with the next step.

        Raises:
            InvalidArgumentError: They are of another model or not the ones in use, or a beam search has begun.
            NotFoundError: There is no such adapter.
        """
        if not isinstance(adapters, Adapters) or adapters.model is not self._model:
            what = "Adapters of another model" if isinstance(adapters, Adapters) else type(adapters).__name__
            raise InvalidArgumentError(f"adapters are {what}; allowed: Adapters(model) of the generator's own model")
        if self._adapters not in (None, adapters):
            raise InvalidArgumentError("the generator has adapters of another Adapters object; load all into one")
        if self._beams is not None:
            raise InvalidArgumentError("the beam search has begun; rewind_to the prompt or make a new Generator")
        adapter = adapters.acquire(name, self)
        self._adapters = adapters
        self._steps.forget()
        self._steps.use_adapter(adapter, self._num_run)

    @property
    def _num_run(self) -> int:
        """Columns that the model has run; prompts of early versions run with the first step."""
        if self._logits is not None:
            return self._rows.width
        return 0 if self._is_early and self._next is None else self._last_run.stop

    def set_runtime_option(self, key: str, value: str) -> None:
        """Takes ``terminate_session``: "1" stops what runs. Others raise ``UnsupportedError``."""
        if key != "terminate_session":
            refuse(f"set_runtime_option({key!r})", "there is terminate_session only")
        if value == "1":
            self._changed()

    def snapshot_state(self) -> None:
        """Does nothing: :meth:`rewind_to` goes to any length without."""

    def get_speculative_stats(self) -> dict[str, object]:
        """Empty: nothing is drafted."""
        return {}

    def compute_logits(self) -> None:
        """A call of early versions; does nothing, ``generate_next_token`` computes what it needs."""
        warnings.warn("compute_logits is a call of early versions and does nothing", DeprecationWarning, stacklevel=2)

    @property
    def _beams_a_row(self) -> int:
        return self._options.num_return_sequences

    def _contexts(self) -> list[Context | None]:
        """What the model has before the next token of each row; None where there is none."""
        if self._beams is not None and self._beams.is_done:
            raise InvalidArgumentError("the beam search is over, so that there is no next token")
        if self._beams is not None:
            return self._beams.contexts()
        rows = range(self._rows.count)
        found = [None if self._rows.has_ended(row) else self._steps.context(self._rows, row) for row in rows]
        return [context for context in found for _ in range(self._options.num_beams)]

    def _beam(self, index: int) -> npt.NDArray[np.int32]:
        if self._beams is None:
            raise InvalidArgumentError("nothing was generated; call generate_next_token() first")
        row, rank = divmod(index, self._beams_a_row)
        tail = np.asarray(self._beams.tokens(row, rank), dtype=np.int32)
        return np.concatenate([self._rows.shown(row), tail])

    def _logits_at(self, columns: range) -> npt.NDArray[np.float32]:
        """Logits after each column, each with its own request; the engine shares what their contexts share."""
        places = [
            (row, column) for row in range(self._rows.count) for column in columns if self._rows.is_real(row, column)
        ]
        if len(places) > _MOST_POSITIONS:
            raise UnsupportedError(
                f"get_output('logits') would compute {len(places)} positions; allowed: {_MOST_POSITIONS}. Append "
                "shorter pieces, or use get_logits() for the last position"
            )
        found = self._steps.logits([self._steps.context(self._rows, row, column + 1) for row, column in places])
        out = np.zeros((self._rows.count, len(columns), self._model.vocab_size), dtype=np.float32)
        for (row, column), logits in zip(places, found, strict=True):
            out[row, column - columns.start, : len(logits)] = logits
        return out

    def _changed(self) -> None:
        self._steps.forget()
        self._logits, self._is_set = None, False

    def _check_prompt(self) -> None:
        if self._rows.width == 0:
            raise InvalidArgumentError("there are no tokens yet; call append_tokens() first")

    def _refuse_beams(self, what: str) -> None:
        if self._options.is_beam_search:
            refuse(f"{what} with num_beams={self._options.num_beams}", "a beam search runs as a whole")


def _defaults(model: Model) -> SearchOptions:
    search = model.config.document.get("search")
    limit = model.context_limit
    stated = dict(search) if isinstance(search, Mapping) else _from_generation(model)
    length = stated.get("max_length")
    if limit is not None and isinstance(length, int):
        stated["max_length"] = min(length, limit)
    return read_options(stated, max_length=limit or _UNSTATED_LENGTH)


def _from_generation(model: Model) -> dict[str, Any]:
    """The defaults of packages without genai_config.json."""
    found = model.package.generation
    names = ("do_sample", "top_k", "top_p", "repetition_penalty", "no_repeat_ngram_size", "length_penalty")
    stated = {name: getattr(found, name) for name in names}
    if found.temperature:
        stated["temperature"] = found.temperature
    if isinstance(found.early_stopping, bool):
        stated["early_stopping"] = found.early_stopping
    return stated


def _check_fit(model: Model, options: SearchOptions) -> None:
    declared = model.declared_vocab_size
    if options.is_beam_search and declared < 2:
        raise InvalidArgumentError(f"num_beams is {options.num_beams} with a vocabulary of {declared}; allowed: 1")
    stated = model.config.document.get("model")
    ends = stated.get("eos_token_id") if isinstance(stated, Mapping) else None
    for token in ends if isinstance(ends, list) else [ends]:
        if isinstance(token, int) and token >= declared:
            raise InvalidArgumentError(
                f"eos_token_id is {token}; allowed: 0..{declared - 1}, the vocabulary that the package states"
            )
