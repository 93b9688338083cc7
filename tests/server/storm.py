"""Hundreds of clients, good and bad, for minutes: ``python -m tests.server.storm --minutes 10``.

The server runs in a process of its own with two small models; the clients run in this one, with a lower priority, and a
third process asks for ``/health`` ten times a second. In the end it says, and checks with its exit code:

* wrong answers and broken promises: none;
* KV blocks that are held, requests that are open and descriptors that are left when all clients have gone: none;
* memory of the server after the first quarter of the time: its slope times the rest is below ``--growth`` MiB. By then
  what fills is full (KV of earlier prompts, sessions). What still grows is the C library's heap, whose holes settle
  slowly: some 50 bytes for each thing that clients do, of which about 5 are in use. What each left is said too: more
  than that, the same in a storm ten times as long, is a leak;
* the 99th percentile of ``/health`` is below ``--health-ms``.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.models.packages import write_checksum_package, write_scripted_package
from tests.server.storm_clients import CHECKSUM, MAX_BODY_BYTES, SCRIPT, SCRIPTED, Findings, client

ROOT = Path(__file__).resolve().parents[2]
SETTLE_SECONDS = 60.0


@dataclass
class Report:
    findings: Findings
    minutes: float
    rss: list[tuple[float, int]] = field(default_factory=list)
    """Seconds, bytes."""
    health: list[float] = field(default_factory=list)
    """Seconds of each answer."""
    left: dict[str, float] = field(default_factory=dict)
    leaked_blocks: int = -1
    """KV blocks that sequences hold when all clients have gone, as the engines count them."""
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    server_cpu_seconds: float = 0.0

    @property
    def slope(self) -> float:
        """Bytes a second, after the first quarter."""
        end = self.rss[-1][0]
        late = [(when, size) for when, size in self.rss if when >= end / 4]
        return statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 2 else 0.0

    @property
    def growth(self) -> float:
        """Bytes that it grew after the first quarter, by that slope."""
        return self.slope * self.rss[-1][0] * 0.75

    @property
    def growth_each(self) -> float:
        """Bytes of it for each thing that a client did."""
        return self.growth / max(0.75 * self.findings.done.total(), 1)

    def health_ms(self, percent: float) -> float:
        ordered = sorted(self.health)
        return 1e3 * ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]

    def lines(self) -> list[str]:
        first, last = self.rss[0][1] / 2**20, self.rss[-1][1] / 2**20
        return [
            f"done: {dict(self.findings.done.most_common())}",
            f"answers compared: {self.findings.checked}, wrong: {len(self.findings.wrong)}",
            *(f"  {count} times {each}" for each, count in Counter(self.findings.wrong).most_common(20)),
            f"KV blocks leaked: {self.leaked_blocks}; left behind besides: {self.left or 'nothing'}",
            f"memory: {first:.1f} MiB at the start, {last:.1f} at the end; after the first quarter "
            f"{self.slope * 60 / 2**20:+.3f} MiB a minute, {self.growth / 2**20:+.2f} MiB in all, "
            f"{self.growth_each:+.0f} bytes for each thing done",
            f"/health of {len(self.health)}: p50 {self.health_ms(50):.1f} ms, p99 {self.health_ms(99):.1f} ms, "
            f"worst {self.health_ms(100):.1f} ms; load average {self.load[0]:.1f} {self.load[1]:.1f}, server "
            f"{self.server_cpu_seconds / max(self.rss[-1][0], 1):.2f} processors",
        ]


def run_storm(folder: Path, *, minutes: float, connections: int, think: float, seed: int, nice: int = 0) -> Report:
    """Runs a storm with models that are written to ``folder``; ``nice`` is added to this process's own, for good."""
    checksum = write_checksum_package(folder / CHECKSUM, "gqa")
    scripted = write_scripted_package(folder / SCRIPTED, SCRIPT)
    server = _start("serve", str(checksum), str(scripted))
    try:
        port = int(_line(server))
        prober = _start("probe", str(port))
        report = Report(Findings(), minutes)
        before = _left(port, server.pid)
        os.nice(nice)
        asyncio.run(_clients(port, server.pid, report, connections=connections, think=think, seed=seed))
        report.load = os.getloadavg()
        report.health = json.loads(_stop(prober))
        report.left = _settled(port, server.pid, before)
        report.leaked_blocks = json.loads(_stop(server))
    finally:
        _stop(server)
    return report


async def _clients(port: int, pid: int, report: Report, *, connections: int, think: float, seed: int) -> None:
    stop = asyncio.Event()
    minute = 0
    began, cpu = time.perf_counter(), _cpu_seconds(pid)
    tasks = [
        asyncio.ensure_future(client(port, 1000 * seed + number, report.findings, stop, think))
        for number in range(connections)
    ]
    while (passed := time.perf_counter() - began) < 60 * report.minutes:
        report.rss.append((passed, _rss(pid)))
        if passed >= 60 * minute:
            minute += 1
            print(f"{passed:.0f} s: {report.findings.checked} compared, {len(report.findings.wrong)} wrong", flush=True)
        await asyncio.sleep(1.0)
        if any(task.done() for task in tasks):
            break
    stop.set()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if result is not None:
            report.findings.blame(f"a client failed: {result!r}")
    report.rss.append((time.perf_counter() - began, _rss(pid)))
    report.server_cpu_seconds = _cpu_seconds(pid) - cpu


def _settled(port: int, pid: int, before: dict[str, float]) -> dict[str, float]:
    """What is left behind when the server had time to notice that all have gone; nothing is an empty dict."""
    end = time.perf_counter() + SETTLE_SECONDS
    while True:
        left = _left(port, pid)
        more = {name: value - before[name] for name, value in left.items() if value > before[name]}
        if not more or time.perf_counter() > end:
            return more
        time.sleep(1.0)


def _left(port: int, pid: int) -> dict[str, float]:
    page = _get(port, "/metrics")[1].decode()
    sums = {}
    for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "open_requests"):
        found = re.findall(rf"^onnx_genai:{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        sums[name] = sum(map(float, found))
    sums["slots"] = float(len(json.loads(_get(port, "/slots")[1])))
    sums["descriptors"] = float(len(list(Path(f"/proc/{pid}/fd").iterdir())))
    return sums


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.server.storm", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process of the storm ended with code {process.wait()}; its error output is above")
    return line


def _stop(process: subprocess.Popen[str]) -> str:
    """Closing its input tells it to end; returns the rest of its output, once."""
    if process.poll() is not None and (process.stdout is None or process.stdout.closed):
        return ""
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(checksum: str, scripted: str) -> None:
    """The server's process: prints the port, ends when its input does."""
    import threading

    from onnx_genai import AsyncLLM
    from onnx_genai.server import Limits, ModelSpec, Server, ServerConfig
    from onnx_genai.server.run import settle_heap

    settle_heap()
    specs = [
        # KV of earlier prompts is kept as long as there is room, and memory is not flat before it is full.
        ModelSpec(name=CHECKSUM, load=lambda: AsyncLLM(checksum, threads=1, max_num_seqs=32, host_ram_limit="32MiB")),
        ModelSpec(name=SCRIPTED, load=lambda: AsyncLLM(scripted, threads=1, max_num_seqs=16, host_ram_limit="16MiB")),
    ]
    limits = Limits(
        max_body_bytes=MAX_BODY_BYTES, slow_reader_timeout=10.0, body_timeout=10.0, head_timeout=30.0, max_sessions=64
    )
    server = Server(specs, ServerConfig(port=0, limits=limits, drain_timeout=5.0))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not (server.started and server.state.models.is_ready):
        if not thread.is_alive():
            raise SystemExit("the server did not start")
        time.sleep(0.02)
    print(server.port, flush=True)
    sys.stdin.read()
    models = [entry.model for entry in server.state.models.entries.values() if entry.model is not None]
    print(sum(int(model.metrics()["kv_hot_used_blocks"]) for model in models), flush=True)
    server.begin_drain()
    thread.join()


def _probe(port: int) -> None:
    """Asks for /health until its input ends, then prints how long each answer took."""
    import select

    seconds: list[float] = []
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        began = time.perf_counter()
        try:
            status, _ = _get(port, "/health")
        except OSError:
            status = 0
        # No answer, or not the right one, is as bad as a very late one.
        seconds.append(time.perf_counter() - began if status == 200 else 60.0)
    print(json.dumps(seconds), flush=True)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        _serve(*arguments[1:])
        return 0
    if arguments[:1] == ["probe"]:
        _probe(int(arguments[1]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--think", type=float, default=1.0, help="seconds between two things a client does, on average")
    parser.add_argument("--seed", type=int, default=0)
    # What the clients take from the server's processors is not the server's fault.
    parser.add_argument("--nice", type=int, default=10, help="how much the clients stand back behind the server")
    parser.add_argument("--growth", type=float, default=8.0, help="MiB that the server may grow")
    parser.add_argument("--health-ms", type=float, default=100.0, help="bound on the 99th percentile of /health")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = run_storm(
            Path(folder),
            minutes=options.minutes,
            connections=options.connections,
            think=options.think,
            seed=options.seed,
            nice=options.nice,
        )
    print("\n".join(report.lines()))
    faults = {
        "wrong answers": bool(report.findings.wrong),
        "KV blocks leaked": report.leaked_blocks != 0,
        "something left behind": bool(report.left),
        "memory grows": report.growth > options.growth * 2**20,
        "/health is slow": report.health_ms(99) >= options.health_ms,
    }
    found = [name for name, is_there in faults.items() if is_there]
    print("faults: " + (", ".join(found) or "none"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
