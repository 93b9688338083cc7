"""Log-probabilities of a prompt's own tokens, for ``echo`` with ``logprobs``."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_genai.server.errors import ApiError
from onnx_genai.server.model import CompletionOptions, ServedModel
from onnx_genai.types import SamplingParams, TokenLogprob

__all__ = ["score_prompt"]


async def score_prompt(
    model: ServedModel, ids: Sequence[int], top: int, options: CompletionOptions, limit: int
) -> list[TokenLogprob | str]:
    """One entry for each token of a prompt; the first has no log-probability, only its text.

    The prompt's tokens are forced as the answer to its first one. Forcing takes place behind the model's own logits, of
    which log-probabilities are, so they are those of the prompt. Cost: one step a token.

    Raises:
        ApiError: The prompt has more than ``limit`` tokens, or is the source of an encoder-decoder.
    """
    if model.is_encoder_decoder:
        raise ApiError(
            400,
            "echo with logprobs asks how likely the prompt is; this model is an encoder-decoder, which does not tell",
            param="echo",
            code="unsupported_parameter",
        )
    if len(ids) > limit:
        raise ApiError(
            400,
            f"prompt has {len(ids)} tokens; with echo and logprobs this server allows at most {limit}",
            param="prompt",
            code="invalid_value",
        )
    first = await model.decode(ids[:1])
    if len(ids) < 2:
        return [first]
    params = SamplingParams(
        max_new_tokens=len(ids) - 1,
        temperature=0.0,
        forced_tokens=dict(enumerate(ids[1:])),
        ignore_eos=True,
        logprobs=True,
        top_logprobs=top,
    )
    result = await model.complete(ids[:1], params, options)
    return [first, *(result.logprobs or ())]
