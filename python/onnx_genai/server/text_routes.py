"""``/tokenize``, ``/detokenize``, ``/apply-template``: what a text or chat looks like to a model."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.server.errors import ApiError
from onnx_genai.server.large_json import json_answer
from onnx_genai.server.model import ServedModel
from onnx_genai.server.schemas.base import bad_value
from onnx_genai.server.schemas.text import DetokenizeRequest, TemplateRequest, TokenizeRequest
from onnx_genai.server.state import ServerState

__all__ = ["TextRoutes"]


class TextRoutes:
    """The text routes of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/apply-template", self.apply_template, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text, or of the prompt of a chat."""
        body = await self._state.read(request, TokenizeRequest)
        given = [each for each in (body.prompt, body.content, body.messages) if each is not None]
        if len(given) != 1:
            raise ApiError(400, "give one of prompt, content and messages", param="prompt", code="invalid_value")
        async with self._state.running(request, "tokenize", body.model) as running:
            value = await running.live.run(self._tokens(running.model, body))
            return await json_answer({**value, "model": running.name, "max_model_len": running.model.context_limit})

    async def _tokens(self, model: ServedModel, body: TokenizeRequest) -> dict[str, Any]:
        wanted = [each for each in (body.add_special_tokens, body.add_special) if each is not None]
        if body.messages is not None:
            if wanted and wanted[0]:
                raise ApiError(
                    400,
                    "add_special_tokens is not for messages: the chat template writes them itself",
                    param="add_special_tokens",
                    code="invalid_value",
                )
            ids = await model.encode_chat(
                [message.for_template(index) for index, message in enumerate(body.messages)],
                tools=None if not body.tools else [tool.model_dump(exclude_none=True) for tool in body.tools],
                template_kwargs=body.chat_template_kwargs,
            )
        else:
            name = "prompt" if body.prompt is not None else "content"
            text = body.prompt if body.prompt is not None else body.content or ""
            limit = self._state.config.limits.max_tokenized_bytes
            size = len(text.encode("utf-8"))
            if size > limit:
                raise bad_value(name, f"{name} has {size} bytes; this server tokenises at most {limit}")
            ids = await model.encode(text, add_special_tokens=wanted[0] if wanted else True)
        value: dict[str, Any] = {"tokens": ids, "count": len(ids)}
        if body.with_pieces:
            value["pieces"] = await asyncio.to_thread(list, map(model.token_text, ids))
        return value

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        limits = self._state.config.limits
        body = await self._state.read(request, DetokenizeRequest)
        if len(body.tokens) > limits.max_detokenized_tokens:
            raise bad_value(
                "tokens",
                f"tokens has {len(body.tokens)} entries; this server allows at most {limits.max_detokenized_tokens}",
            )
        async with self._state.running(request, "detokenize", body.model) as running:
            decode = running.model.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
            text = await running.live.run(decode)
            return await json_answer({"prompt": text, "content": text, "model": running.name})

    async def apply_template(self, request: Request) -> Response:
        """The prompt text that a chat becomes."""
        body = await self._state.read(request, TemplateRequest)
        messages = [message.for_template(index) for index, message in enumerate(body.messages)]
        async with self._state.running(request, "apply-template", body.model) as running:
            render = running.model.render(
                messages,
                tools=None if not body.tools else [tool.model_dump(exclude_none=True) for tool in body.tools],
                add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
                continue_final_message=bool(body.continue_final_message),
                template_kwargs=body.chat_template_kwargs,
            )
            return await json_answer({"prompt": await running.live.run(render), "model": running.name})
