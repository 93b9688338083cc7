"""The models of a server: loaded when asked for, once for all who wait, unloaded when unused. One event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from onnx_genai.errors import GenAIError, InvalidArgumentError
from onnx_genai.pipelines import ModelKind
from onnx_genai.server.config import ModelSpec
from onnx_genai.server.encoder import Served, served
from onnx_genai.server.errors import ApiError

__all__ = ["ModelEntry", "ModelRegistry"]

_log = logging.getLogger("onnx_genai.server")


class ModelEntry:
    """One model and its state."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.created = int(time.time())
        self.model: Served | None = None
        self.loading: asyncio.Task[Served] | None = None
        self.has_room = False
        """Counts as loaded, be it that it still loads."""
        self.users = 0
        self.last_used = time.monotonic()
        self.num_loads = 0

    @property
    def kind(self) -> ModelKind | None:
        """What the model makes of a text; None as long as nobody knows."""
        return self.spec.kind if self.model is None else self.model.kind

    @property
    def state(self) -> str:
        """``loaded``, ``loading`` or ``unloaded``."""
        return "loaded" if self.model is not None else "loading" if self.loading is not None else "unloaded"


class ModelRegistry:
    """All models of a server."""

    def __init__(self, specs: Sequence[ModelSpec], *, ttl: float | None = None, max_loaded: int | None = None) -> None:
        if not specs:
            raise InvalidArgumentError("no model was given; name at least one")
        self._ttl = ttl
        self._max_loaded = max_loaded
        self._making_room = asyncio.Lock()
        self.entries = {spec.name: ModelEntry(spec) for spec in specs}
        self._names: dict[str, ModelEntry] = {}
        for entry in self.entries.values():
            for name in (entry.spec.name, *entry.spec.aliases):
                if self._names.setdefault(name, entry) is not entry or not name:
                    raise InvalidArgumentError(f"two models have the name {name!r}; give each its own")
        if len(self.entries) != len(specs):
            raise InvalidArgumentError("two models have the same name; give each its own (NAME=MODEL)")

    @property
    def default(self) -> ModelEntry:
        """The first model."""
        return next(iter(self.entries.values()))

    def default_for(self, kinds: Collection[ModelKind]) -> ModelEntry:
        """The model that answers who names none: the first of these kinds, or the first of all."""
        entries = list(self.entries.values())
        return next((entry for entry in entries if entry.kind is None or entry.kind in kinds), entries[0])

    def find(self, name: str | None, kinds: Collection[ModelKind] = ()) -> ModelEntry:
        """The entry of a name or alias; None or an empty name is the default for these kinds.

        Raises:
            ApiError: 404 with the names that there are.
        """
        if not name:
            return self.default_for(kinds)
        entry = self._names.get(name)
        if entry is None:
            raise ApiError(
                404,
                f"There is no model {name[:200]!r} here; there are: {', '.join(list(self._names)[:50])}.",
                param="model",
                code="model_not_found",
            )
        return entry

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[tuple[str, Served]]:
        """The served name and the model, loaded now if need be; it stays loaded inside of the block."""
        entry = self.find(name)
        entry.users += 1
        try:
            yield entry.spec.name, await self._loaded(entry)
        finally:
            entry.users -= 1
            entry.last_used = time.monotonic()

    async def load_eager(self) -> None:
        """Loads the models that are wanted from the start, one after the other.

        Raises:
            GenAIError: One cannot be loaded.
        """
        for entry in self.entries.values():
            if entry.spec.eager:
                # Shielded: a server that is stopped meanwhile must still get hold of the model to free it.
                await asyncio.shield(self._load_task(entry))

    @property
    def is_ready(self) -> bool:
        """Whether all models that are wanted from the start were loaded once."""
        return all(entry.num_loads or not entry.spec.eager for entry in self.entries.values())

    @property
    def broken(self) -> list[str]:
        """Names of models whose engine has ended."""
        return [name for name, entry in self.entries.items() if entry.model is not None and entry.model.is_closed]

    async def unload_unused(self) -> None:
        """Unloads what nobody used for the time to live."""
        if self._ttl is None:
            return
        for entry in self.entries.values():
            if entry.model is not None and not entry.users and time.monotonic() - entry.last_used >= self._ttl:
                await self._unload(entry)

    async def close(self) -> None:
        """Frees all models; what runs is aborted."""
        for entry in self.entries.values():
            if entry.loading is not None:
                await asyncio.gather(entry.loading, return_exceptions=True)
            await self._unload(entry)

    async def _loaded(self, entry: ModelEntry) -> Served:
        if entry.model is not None:
            return entry.model
        try:
            # Shielded: who waits may leave, the load goes on for the others.
            return await asyncio.shield(self._load_task(entry))
        except GenAIError as error:
            raise ApiError(
                500,
                f"The model {entry.spec.name!r} could not be loaded; the server's log says why.",
                code="model_load_failed",
            ) from error

    def _load_task(self, entry: ModelEntry) -> asyncio.Task[Served]:
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._load(entry))
        return entry.loading

    async def _load(self, entry: ModelEntry) -> Served:
        started = time.perf_counter()
        try:
            if entry.model is None:
                await self._make_room(entry)
                _log.info("loading model %s", entry.spec.name)
                entry.model = served(await asyncio.to_thread(entry.spec.load))
                entry.num_loads += 1
                _log.info("loaded model %s in %.1f s", entry.spec.name, time.perf_counter() - started)
            return entry.model
        except GenAIError as error:
            _log.error("model %s could not be loaded: %s", entry.spec.name, error)
            raise
        finally:
            entry.has_room = entry.model is not None
            entry.loading = None
            entry.last_used = time.monotonic()

    async def _make_room(self, wanted: ModelEntry) -> None:
        async with self._making_room:
            while self._max_loaded is not None:
                held = [each for each in self.entries.values() if each.has_room and each is not wanted]
                if len(held) < self._max_loaded:
                    break
                idle = [each for each in held if each.model is not None and not each.users]
                if not idle:
                    raise ApiError(
                        503,
                        f"All {self._max_loaded} models that may be loaded are in use; try again.",
                        code="overloaded",
                        headers={"Retry-After": "5"},
                    )
                await self._unload(min(idle, key=lambda each: each.last_used))
            wanted.has_room = True

    async def _unload(self, entry: ModelEntry) -> None:
        model, entry.model = entry.model, None
        if model is not None:
            entry.has_room = False
            try:
                await model.close()
            except (GenAIError, RuntimeError, OSError):  # must not keep the others loaded
                _log.exception("model %s could not be closed", entry.spec.name)
            else:
                _log.info("unloaded model %s", entry.spec.name)
