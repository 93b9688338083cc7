"""A server as a contestant: ``python -m benchmarks.server.worker MODEL OPTIONS``; MODEL is a folder or ``instant``.

It tells its port first. A request ``{"profile": false}`` is answered with the processor time of the process so far and
the engine's numbers; ``{"profile": FILE}`` profiles the event loop until the next request, and writes it there.
"""

from __future__ import annotations

import cProfile
import json
import logging
import sys
import threading
import time
from typing import Any

from benchmarks.harness import contestant
from benchmarks.harness.process import cpu_seconds, peak_rss_bytes
from benchmarks.server.instant import InstantLLM
from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec, Server, ServerConfig

NAME = "model"


def main() -> None:
    model, options = sys.argv[1], json.loads(sys.argv[2])
    logging.getLogger("onnx_genai.server").setLevel(logging.ERROR)
    spec = ModelSpec(name=NAME, load=lambda: _load(model, options))
    server = Server([spec], ServerConfig(port=0))
    thread = _ServerThread(server)
    thread.start()
    while not (server.started and server.state.models.is_ready):
        if not thread.is_alive() or server.failure is not None:
            raise SystemExit(f"the server did not start: {server.failure}")
        time.sleep(0.02)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        loaded = server.state.models.entries[NAME].model
        assert loaded is not None
        thread.profile(request.get("profile") or None)
        return {
            "cpu_seconds": cpu_seconds(),
            "loop_seconds": thread.cpu_seconds(),
            "peak_rss_bytes": peak_rss_bytes(),
            "metrics": loaded.metrics(),
        }

    contestant.serve(handle, {"port": server.port})
    server.begin_drain()
    thread.join(30)


class _ServerThread(threading.Thread):
    """Runs the event loop; tells how much processor time it took, and may profile it."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="server", daemon=True)
        self._server = server
        self._profile: tuple[cProfile.Profile, str] | None = None

    def run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._server.run()

    def cpu_seconds(self) -> float:
        return time.clock_gettime(self._clock)

    def profile(self, file: str | None) -> None:
        if self._profile is None and file is None:
            return
        done = threading.Event()

        def change() -> None:
            if self._profile is not None:
                self._profile[0].disable()
                self._profile[0].dump_stats(self._profile[1])
                self._profile = None
            if file is not None:
                self._profile = (cProfile.Profile(), file)
                self._profile[0].enable()
            done.set()

        loop = self._server.servers[0].get_loop()
        loop.call_soon_threadsafe(change)
        done.wait(10)


def _load(model: str, options: dict[str, Any]) -> Any:
    return InstantLLM() if model == "instant" else AsyncLLM(model, **options)


if __name__ == "__main__":
    main()
