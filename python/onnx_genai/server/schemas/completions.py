"""``POST /v1/completions``: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError
from onnx_genai.server.schemas.base import ListOf
from onnx_genai.server.schemas.sampling import GenerationRequest

__all__ = ["CompletionRequest"]

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest):
    """The whole request."""

    refused: ClassVar[Mapping[str, str]] = {
        "response_format": "use /v1/chat/completions",
        "structured_outputs": "use /v1/chat/completions with response_format",
        "guided_json": "use /v1/chat/completions with response_format",
        "guided_regex": "use /v1/chat/completions with response_format",
        "guided_choice": "use /v1/chat/completions with response_format",
        "guided_grammar": "use /v1/chat/completions with response_format",
        "grammar": "use /v1/chat/completions with response_format",
        "prompt_embeds": "give text or token ids",
        "use_beam_search": "beam search is part of the Python interface only",
        "prompt_logprobs": "give echo and logprobs",
    }

    prompt: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)

    def prompts(self, limits: Limits) -> list[str | list[int]]:
        """The prompts, one entry each.

        Raises:
            ApiError: There is none, one is empty, or they or their answers are too many.
        """
        given = self.prompt
        prompts: list[str | list[int]] = []
        if isinstance(given, str):
            prompts = [given]
        elif given and all(isinstance(each, int) for each in given):
            prompts = [[each for each in given if isinstance(each, int)]]
        else:
            prompts = [each for each in given if not isinstance(each, int)]
        if not prompts or not all(prompts):
            raise ApiError(
                400,
                "prompt is empty or has an empty entry; give at least one character or token",
                param="prompt",
                code="invalid_value",
            )
        if len(prompts) > limits.max_prompts:
            raise ApiError(
                400,
                f"prompt has {len(prompts)} entries; this server allows at most {limits.max_prompts}",
                param="prompt",
                code="invalid_value",
            )
        if len(prompts) * self.candidates > limits.max_answers:
            field = "n" if self.candidates == self.n else "best_of"
            raise _invalid(
                field,
                f"{field} is {self.candidates} and prompt has {len(prompts)} entries, which are "
                f"{len(prompts) * self.candidates} answers; this server allows at most {limits.max_answers} a request",
            )
        return prompts

    @property
    def candidates(self) -> int:
        """Answers to make for each prompt, of which the best ``n`` are returned."""
        return max(self.best_of or 1, self.n or 1)

    @property
    def answer_tokens(self) -> int:
        """Tokens to make at most; 0 is allowed, with ``echo``."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def check_fields(self, limits: Limits) -> None:
        """What concerns several fields at once."""
        self.check_stream_options()
        if self.suffix and self.echo:
            raise _invalid("echo", "echo with suffix has no plain meaning; drop one of them")
        if self.best_of is not None:
            if self.best_of < (self.n or 1):
                raise _invalid("best_of", f"best_of is {self.best_of}; allowed: at least n, which is {self.n or 1}")
            if self.best_of > limits.max_choices:
                raise _invalid("best_of", f"best_of is {self.best_of}; this server allows at most {limits.max_choices}")
            if self.stream and self.best_of > (self.n or 1):
                raise _invalid("best_of", "best_of above n needs all answers before the first is chosen; drop stream")
        if self.answer_tokens < (0 if self.echo else 1):
            raise _invalid("max_tokens", f"max_tokens is {self.max_tokens}; allowed: 1 or more, or 0 with echo")
        if self.echo and self.logprobs is not None and self.stream:
            raise _invalid("stream", "echo with logprobs scores the whole prompt first; drop stream")


def _invalid(param: str, text: str) -> ApiError:
    return ApiError(400, text, param=param, code="invalid_value")
