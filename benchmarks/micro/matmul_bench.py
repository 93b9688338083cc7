"""Time of MatMulNBits, ours and ONNX Runtime's, in plain onnxruntime, against the limits of the machine.

    python -m benchmarks.micro.matmul_bench [--threads 2] [--peaks build/bench/machine_peaks] [--json FILE]

Timed: one Run of a model with as many nodes of a shape as the model has layers, weights of their own each, so that
they come from where they come from in a model, and one output for all, as a model uses its memory again. From 32 rows
on they are a prompt's, which ours may compute in tiles. The contestants take turns. ``GB/s``: bytes of codes and
float16 scales that a product must read, over time; ``TOPS``: multiplications and additions, over time.
``machine_peaks`` (a target of ``cpp`` with ``-DGENAI_BUILD_BENCHMARKS=ON``) measures what the machine reads and
multiplies at most, before and after. With it, ``limit`` is the share of the roofline that ours reaches: the time for
reading those bytes or for those operations, the longer one, at the rates measured before, over the time taken. The
operations are int8 vectors', or of a prompt's rows the tiles' of bfloat16 where there are any; above 1 is what a cache
served.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.micro.paged_attention_bench import library_path

ROWS = (1, 4, 8, 16, 128, 512)
PROMPT = 32
"""Rows from which on they are a prompt's."""
BLOCK = 32
MICROSOFT, OURS = "com.microsoft", "genai.runtime"


@dataclass(frozen=True)
class Product:
    """A matrix of a model."""

    model: str
    name: str
    depth: int
    columns: int
    copies: int

    @property
    def read_bytes(self) -> float:
        return self.depth * self.columns * (0.5 + 2 / BLOCK)


def products() -> list[Product]:
    out = []
    for model, hidden, kv, inner, vocabulary, layers in (
        ("SmolLM2-135M", 576, 192, 1536, 49152, 30),
        ("Qwen2.5-0.5B", 896, 128, 4864, 151936, 24),
        ("Llama-3.2-1B", 2048, 512, 8192, 128256, 4),
    ):
        out += [
            Product(model, "qkv", hidden, hidden + 2 * kv, layers),
            Product(model, "o", hidden, hidden, layers),
            Product(model, "gate, up", hidden, 2 * inner, layers),
            Product(model, "down", inner, hidden, layers),
            Product(model, "head", hidden, vocabulary, 1),
        ]
    return out


def _session(product: Product, domain: str, threads: int) -> Any:
    random = np.random.default_rng(0)
    blocks = product.depth // BLOCK
    nodes, constants = [], []
    for copy in range(product.copies):
        codes = random.integers(0, 256, (product.columns, blocks, BLOCK // 2), dtype=np.uint8)
        scales = (random.random((product.columns, blocks)) * 0.02 - 0.01).astype(np.float16).astype(np.float32)
        constants += [numpy_helper.from_array(codes, f"codes{copy}"), numpy_helper.from_array(scales, f"scales{copy}")]
        attributes = {"K": product.depth, "N": product.columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        inputs = ["x", f"codes{copy}", f"scales{copy}"]
        if domain == OURS:
            inputs += [""] * 10 + ["prompt_rows"]
        nodes.append(helper.make_node("MatMulNBits", inputs, [f"y{copy}"], domain=domain, **attributes))
    outputs = [helper.make_tensor_value_info(f"y{copy}", TensorProto.FLOAT, None) for copy in range(product.copies)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    if domain == OURS:
        given.append(helper.make_tensor_value_info("prompt_rows", TensorProto.INT32, None))
    graph = helper.make_graph(nodes, "g", given, outputs, constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library_path())
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure(product: Product, rows: int, sessions: dict[str, Any], rounds: int) -> dict[str, float]:
    """Median seconds of one product by domain."""
    x = np.random.default_rng(1).standard_normal((rows, product.depth)).astype(np.float32)
    seconds: dict[str, list[float]] = {domain: [] for domain in sessions}
    output = onnxruntime.OrtValue.ortvalue_from_shape_and_type((rows, product.columns), np.float32)
    bindings = {}
    for domain, session in sessions.items():
        binding = bindings[domain] = session.io_binding()
        binding.bind_cpu_input("x", x)
        if domain == OURS:
            binding.bind_cpu_input("prompt_rows", np.full(rows, rows >= PROMPT, np.int32))
        for copy in range(product.copies):
            binding.bind_ortvalue_output(f"y{copy}", output)
        started = time.perf_counter()
        while time.perf_counter() - started < 0.1:  # a new session's threads may share a core at first
            session.run_with_iobinding(binding)
    for _ in range(rounds):
        for domain, session in sessions.items():
            for _ in range(3):
                started = time.perf_counter()
                session.run_with_iobinding(bindings[domain])
                seconds[domain].append(time.perf_counter() - started)
    return {domain: statistics.median(each) / product.copies for domain, each in seconds.items()}


def _peaks(program: Path | None, threads: int) -> dict[str, float] | None:
    if program is None:
        return None
    done = subprocess.run([str(program), str(threads)], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, float] = json.loads(done.stdout)
    print("limits:", ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found


def limit_share(product: Product, rows: int, seconds: float, peaks: dict[str, float]) -> float:
    """Part of the roofline that a product in so many seconds reaches; NaN without a rate of operations."""
    tiles = peaks["bf16_tile_ops_per_second"] if rows >= PROMPT else 0.0
    rate = tiles or peaks["int8_ops_per_second"]
    if not rate:
        return float("nan")
    reading = product.read_bytes / peaks["read_bytes_per_second"]
    return max(reading, 2 * rows * product.depth * product.columns / rate) / seconds


def main() -> None:
    """Prints a line for each product and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="", help="only models whose names contain this")
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--peaks", type=Path, help="the program machine_peaks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {"threads": options.threads, "before": _peaks(options.peaks, options.threads), "lines": []}
    peaks = record["before"]
    names = ("ours us", "ORT us", "ORT/ours", "GB/s", "TOPS", "limit")
    widths = (9, 9, 8, 6, 6, 6)
    heads = " ".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    print(f"{'model':14} {'product':9} {'rows':>5} {heads}")
    for product in products():
        if options.models not in product.model:
            continue
        sessions = {domain: _session(product, domain, options.threads) for domain in (MICROSOFT, OURS)}
        for rows in options.rows:
            if product.name == "head" and rows > 16:  # needs its last rows only
                continue
            found = measure(product, rows, sessions, options.rounds)
            ours, theirs = found[OURS], found[MICROSOFT]
            rate, operations = product.read_bytes / ours, 2 * rows * product.depth * product.columns / ours
            share = f"{limit_share(product, rows, ours, peaks):6.2f}" if peaks else f"{'-':>6}"
            print(
                f"{product.model:14} {product.name:9} {rows:5} {ours * 1e6:9.1f} {theirs * 1e6:9.1f} "
                f"{theirs / ours:8.2f} {rate / 1e9:6.1f} {operations / 1e12:6.2f} {share}",
                flush=True,
            )
            line = {"model": product.model, "product": product.name, "rows": rows, "ours": ours, "ort": theirs}
            record["lines"].append({**line, "read_bytes_per_second": rate, "ops_per_second": operations})
    record["after"] = _peaks(options.peaks, options.threads)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
