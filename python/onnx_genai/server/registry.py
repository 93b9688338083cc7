"""The models of a server: loaded when asked for, once for all who wait, unloaded when unused. One event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress

from onnx_genai.errors import GenAIError, InvalidArgumentError, ResourceExhaustedError
from onnx_genai.pipelines import ModelKind
from onnx_genai.server.config import ModelSpec
from onnx_genai.server.encoder import Served, served
from onnx_genai.server.errors import ApiError
from onnx_genai.server.model import ServedModel

__all__ = ["ModelEntry", "ModelRegistry", "adapter_name"]

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
        self.was_tried = False
        """The server came to load it at its start."""
        self.size_bytes = spec.size_bytes
        """Memory that it takes when it is loaded, before requests bring KV: measured, or an estimate if not yet."""

    @property
    def is_idle(self) -> bool:
        """It can be unloaded now."""
        return self.model is not None and not self.users

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

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        *,
        ttl: float | None = None,
        max_loaded: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        if not specs:
            raise InvalidArgumentError("no model was given; name at least one")
        self._ttl = ttl
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._making_room = asyncio.Lock()
        self._loading_one = asyncio.Lock()
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
        """The entry of a name or alias, also with an adapter; None or an empty name is the default for these kinds.

        Raises:
            ApiError: 404 with the names that there are.
        """
        return self._split(name, kinds)[0]

    def served_name(self, name: str) -> str:
        """The one name of what a name or alias stands for: that of the model, with that of the adapter if it has one.

        Raises:
            ApiError: As :meth:`find`.
        """
        entry, adapter = self._split(name)
        return entry.spec.name if adapter is None else adapter_name(entry.spec, adapter)

    def _split(self, name: str | None, kinds: Collection[ModelKind] = ()) -> tuple[ModelEntry, str | None]:
        """The entry, and the adapter if the name has one."""
        if not name:
            return self.default_for(kinds), None
        adapter: str | None = None
        entry = self._names.get(name)
        if entry is None:
            model, _, adapter = name.rpartition(":")
            entry = self._names.get(model)
        if entry is None or (adapter is not None and adapter not in entry.spec.adapters):
            raise ApiError(
                404,
                f"There is no model {name[:200]!r} here; there are: {', '.join(self._known()[:50])}.",
                param="model",
                code="model_not_found",
            )
        return entry, adapter

    def _known(self) -> list[str]:
        """All names, then those with adapters."""
        specs = [entry.spec for entry in self.entries.values()]
        return [*self._names, *(adapter_name(spec, adapter) for spec in specs for adapter in spec.adapters)]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[tuple[str, Served]]:
        """The served name and the model, loaded now if need be; it stays loaded inside of the block."""
        entry, adapter = self._split(name)
        entry.users += 1
        try:
            model = await self._loaded(entry)
            if adapter is None or not isinstance(model, ServedModel):
                yield entry.spec.name, model
            else:
                yield adapter_name(entry.spec, adapter), model.with_adapter(adapter)
        finally:
            entry.users -= 1
            entry.last_used = time.monotonic()

    async def load_eager(self) -> None:
        """Loads the models that are wanted from the start, one after the other.

        One that finds no room, since clients use the others already, is left to its first request.

        Raises:
            GenAIError: One cannot be loaded.
        """
        for entry in self.entries.values():
            if not entry.spec.eager:
                continue
            try:
                # Shielded: a server that is stopped meanwhile must still get hold of the model to free it.
                await asyncio.shield(self._load_task(entry))
            except ApiError as error:
                _log.warning("model %s is not loaded yet: %s", entry.spec.name, error)
            entry.was_tried = True

    @property
    def is_ready(self) -> bool:
        """Whether all models that are wanted from the start were loaded once, or had their turn."""
        return all(entry.num_loads or entry.was_tried or not entry.spec.eager for entry in self.entries.values())

    @property
    def broken(self) -> list[str]:
        """Names of models whose engine has ended."""
        return [name for name, entry in self.entries.items() if entry.model is not None and entry.model.is_closed]

    async def unload_unused(self) -> None:
        """Unloads what nobody used for the time to live, and what is too much by now: KV grows."""
        for entry in self.entries.values():
            if self._ttl is not None and entry.is_idle and time.monotonic() - entry.last_used >= self._ttl:
                await self._unload(entry)
        if self._max_bytes is not None:
            async with self._making_room:
                await self._fit_bytes()

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
                entry.model = await self._load_within_bound(entry)
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

    async def _load_within_bound(self, entry: ModelEntry) -> Served:
        """With a bound in bytes one after the other: a model is measured by what the process has more of.

        Raises:
            ApiError, ResourceExhaustedError: It was closed again; as :meth:`_fit_bytes`.
        """
        if self._max_bytes is None:
            return await _load(entry.spec)
        async with self._loading_one:
            model = await _load(entry.spec)
            async with self._making_room:
                try:
                    entry.size_bytes = await asyncio.to_thread(model.held_bytes)
                    await self._fit_bytes(entry)
                except Exception:
                    # What was measured beside others that grew may be too much, and must not refuse it for ever.
                    entry.size_bytes = entry.spec.size_bytes
                    await _close(entry.spec.name, model)
                    raise
            return model

    async def _make_room(self, wanted: ModelEntry) -> None:
        async with self._making_room:
            while self._max_loaded is not None:
                held = self._held(wanted)
                if len(held) < self._max_loaded:
                    break
                if not await self._unload_one(held):
                    raise _in_use(f"All {self._max_loaded} models that may be loaded are in use")
            await self._fit_bytes(wanted)
            wanted.has_room = True

    async def _fit_bytes(self, wanted: ModelEntry | None = None) -> None:
        """Unloads idle models until ``wanted`` and the others are within the bound; one may stay that is alone.

        Raises:
            ApiError: 503: others are in use and leave no room for ``wanted``.
            ResourceExhaustedError: It would have no room alone; nothing was unloaded.
        """
        if self._max_bytes is None:
            return
        own = 0 if wanted is None else wanted.size_bytes
        if own > self._max_bytes:
            raise ResourceExhaustedError(
                f"it takes {own} bytes and max_model_bytes is {self._max_bytes}; raise that, or take a smaller model"
            )
        held = await asyncio.to_thread(_held_bytes, self._held(wanted))
        while own + sum(size for entry, size in held.items() if entry.has_room) > self._max_bytes:
            is_alone = wanted is None and sum(entry.has_room for entry in held) == 1
            if not is_alone and await self._unload_one(list(held)):
                continue
            if wanted is not None:
                raise _in_use("The models that are in use leave no memory for this one")
            return

    def _held(self, wanted: ModelEntry | None) -> list[ModelEntry]:
        """The others that have or were promised room."""
        return [each for each in self.entries.values() if each.has_room and each is not wanted]

    async def _unload_one(self, held: Sequence[ModelEntry]) -> bool:
        """Unloads the one unused for longest; False if all are in use."""
        idle = [each for each in held if each.is_idle]
        if idle:
            await self._unload(min(idle, key=lambda each: each.last_used))
        return bool(idle)

    async def _unload(self, entry: ModelEntry) -> None:
        model, entry.model = entry.model, None
        if model is not None:
            entry.has_room = False
            await _close(entry.spec.name, model)


def adapter_name(spec: ModelSpec, adapter: str) -> str:
    """What clients call a model with one of its adapters."""
    return f"{spec.name}:{adapter}"


def _held_bytes(entries: Sequence[ModelEntry]) -> dict[ModelEntry, int]:
    """Memory that models hold now, or will when they have loaded. Reads the process's map of memory."""
    held = {}
    for entry in entries:
        model, held[entry] = entry.model, entry.size_bytes
        if model is not None:
            with suppress(GenAIError):  # closed meanwhile, or broken
                held[entry] = model.held_bytes()
    return held


async def _load(spec: ModelSpec) -> Served:
    return served(await asyncio.to_thread(spec.load))


async def _close(name: str, model: Served) -> None:
    try:
        await model.close()
    except (GenAIError, RuntimeError, OSError):  # must not keep the others loaded
        _log.exception("model %s could not be closed", name)
    else:
        _log.info("unloaded model %s", name)


def _in_use(what: str) -> ApiError:
    return ApiError(503, f"{what}; try again.", code="overloaded", headers={"Retry-After": "5"})
