"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["merged"]

T = TypeVar("T")

_HELD = 64


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of all streams as they come, each with the number of its stream. The first failure ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    # None: one stream has ended. Bounded, so that a slow reader does not fill the memory.
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(_HELD)

    async def pump(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await queue.put((number, item))
        except Exception as error:  # noqa: BLE001  handed on to the reader
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.ensure_future(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            got = await queue.get()
            if got is None:
                left -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
