"""Time of PagedAttention and of GroupQueryAttention in plain onnxruntime, side by side.

    python -m benchmarks.micro.paged_attention_bench [--threads 2] [--kv float32] [--pages huge]

Timed: one Run of a model with one node, inputs bound before, rotary embedding on; with one thread its processor time,
which a busy machine does not change, with more the time that passes. Each line runs over as many caches as a model has
layers, one after another, so that KV comes from where it comes from in a model. The contestants take turns of about 100
ms; the median of all runs is printed with the fastest one. After a run the other threads of its session poll for tens
of milliseconds, so a turn begins when those of the one before have gone to sleep, with a round that is not measured.
GroupQueryAttention has shared past and present buffers; for rows of different lengths it gets ``query_seqlens`` and
pads, as it must, which its neighbours in a model feel: the line "with its projections" has the float32 products before
and after it. Prompts are marked as such in lines that begin with "prompt", as a package's with quantized products are.
``read``: the time in which the same number of threads reads as many bytes as the K and V of a decode; all layers are
read at once, so that starting the threads does not count. KV and what ``read`` reads lie on huge pages, as the engine's
pool does where it is full, or with ``--pages small`` on small ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
Run = Callable[[int], None]
BLOCK = 16
HUGE_PAGE = 2 << 20
TURN = 0.1  # seconds that a contestant is measured without a break
REST = 0.06  # seconds until the threads of the session before sleep


@dataclass(frozen=True)
class Shape:
    """Heads of a model."""

    name: str
    heads: int
    kv_heads: int
    layers: int
    head_dim: int = 64


@dataclass(frozen=True)
class Contestant:
    """What is measured."""

    run: Run
    layers: int = 1  #: that one run goes over


SHAPES = [Shape("SmolLM2-135M", 9, 3, 30), Shape("Qwen2.5-0.5B", 14, 2, 24)]
_CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int8": TensorProto.INT8}


def library_path() -> str:
    named = os.environ.get("ONNX_GENAI_KERNEL_LIBRARY")
    if named:
        return named
    spec = importlib.util.find_spec("onnx_genai._core")
    if spec is None or spec.origin is None:
        raise SystemExit("onnx_genai is not installed; its compiled core holds the operator")
    return spec.origin


def _on_pages(array: Array, pages: str) -> Array:
    """A copy of ``array`` on pages of this size, as far as the system has them."""
    memory = mmap.mmap(-1, -(-array.nbytes // HUGE_PAGE) * HUGE_PAGE)
    memory.madvise(mmap.MADV_HUGEPAGE if pages == "huge" else mmap.MADV_NOHUGEPAGE)
    result = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    result[...] = array
    return result


def _value(array: Array) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _session(node: Any, inputs: Mapping[str, int], outputs: list[str], domain: str, threads: int) -> Any:
    nodes = [node]
    if "x" in inputs:  # the projections around it
        nodes = [
            helper.make_node("MatMul", ["x", "qkv_weight"], ["query"]),
            node,
            helper.make_node("MatMul", ["attended", "output_weight"], ["y"]),
        ]
        node.output[0] = "attended"
        node.input[1] = node.input[2] = ""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, code, None) for name, code in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library_path())
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _rotary(length: int, dim: int) -> tuple[Array, Array]:
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rows(shape: Shape, lead: tuple[int, ...], projected: bool) -> dict[str, Array]:
    """Query, key and value; or what the projection makes them from, with the weights."""
    random = np.random.default_rng(1)

    def normal(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if not projected:
        return {"query": normal(*lead, width), "key": normal(*lead, kv_width), "value": normal(*lead, kv_width)}
    return {
        "x": normal(*lead, width),
        "qkv_weight": normal(width, width + 2 * kv_width) / np.float32(width**0.5),
        "output_weight": normal(width, width),
    }


def paged_run(
    shape: Shape,
    rows: list[tuple[int, int]],
    threads: int,
    layers: int,
    *,
    kv: str = "float32",
    projected: bool = False,
    prompts: bool = False,
    pages: str = "huge",
) -> Run:
    """rows: (past, new) of each sequence. projected: with the products before and after the operator. prompts: pieces
    of more than one token are marked as rows of prompts, which may be computed in bfloat16.
    """
    random = np.random.default_rng(0)
    tokens = sum(new for _, new in rows)
    needed = [-(-(past + new) // BLOCK) for past, new in rows]
    order = random.permutation(sum(needed)).astype(np.int32)
    table = np.full((len(rows), max(needed)), -1, np.int32)
    for i, count in enumerate(needed):
        table[i, :count], order = order[:count], order[count:]
    cos, sin = _rotary(max(past + new for past, new in rows), shape.head_dim)
    arrays: dict[str, Array] = {
        **_rows(shape, (tokens,), projected),
        "cu": np.cumsum([0, *(new for _, new in rows)]).astype(np.int32),
        "past": np.array([past for past, _ in rows], np.int32),
        "table": table,
        "cos": cos,
        "sin": sin,
    }
    if prompts:
        arrays["prompts"] = np.concatenate([np.full(new, new > 1, np.int32) for _, new in rows])
    names = ["query", "key", "value", "kc", "vc", "cu", "past", "table", "cos", "sin"]
    codes = {
        name: TensorProto.INT32 if array.dtype == np.int32 else TensorProto.FLOAT for name, array in arrays.items()
    }
    codes["kc"] = codes["vc"] = _CODES[kv]
    if kv == "int8":
        codes.update(ks=TensorProto.FLOAT, vs=TensorProto.FLOAT)
    node = helper.make_node(
        "PagedAttention",
        [*names, "", "", "", "", *(["ks", "vs"] if kv == "int8" else ["", ""]), "", "prompts" if prompts else ""],
        ["y"],
        domain="genai.runtime",
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        do_rotary=1,
    )
    session = _session(node, codes, ["y"], "genai.runtime", threads)
    blocks = sum(needed)
    output = _value(np.empty((tokens, shape.heads * shape.head_dim), np.float32))
    bindings = []
    for _ in range(layers):
        layer = dict(arrays)
        cache = random.integers(-8, 9, (blocks, shape.kv_heads, shape.head_dim, BLOCK))
        layer["kc"] = _on_pages((cache if kv == "int8" else cache / 8).astype(kv), pages)
        layer["vc"] = _on_pages(layer["kc"].reshape(blocks, shape.kv_heads, BLOCK, shape.head_dim), pages)
        if kv == "int8":
            layer["ks"] = layer["vs"] = np.full((blocks, shape.kv_heads, BLOCK), 1 / 8, np.float32)
        binding = session.io_binding()
        for name, array in layer.items():
            binding.bind_ortvalue_input(name, _value(array))
        binding.bind_ortvalue_output("y", output)
        bindings.append((binding, layer))
    return lambda i: session.run_with_iobinding(bindings[i % layers][0])


def gqa_run(
    shape: Shape,
    rows: list[tuple[int, int]],
    threads: int,
    layers: int,
    *,
    projected: bool = False,
    pages: str = "huge",
) -> Run:
    """The same with GroupQueryAttention, padded to the longest piece."""
    random = np.random.default_rng(0)
    batch, longest = len(rows), max(new for _, new in rows)
    capacity = max(past for past, _ in rows) + longest
    cos, sin = _rotary(capacity, shape.head_dim)
    names = ["query", "key", "value", "pk", "pv", "seqlens", "total", "cos", "sin"]
    arrays: dict[str, Array] = {
        **_rows(shape, (batch, longest), projected),
        "seqlens": np.array([past + new - 1 for past, new in rows], np.int32),
        "total": np.array(capacity, np.int32),
        "cos": cos,
        "sin": sin,
    }
    inputs = names
    if any(new != longest for _, new in rows):
        inputs = [*names, *[""] * 7, "lengths"]
        arrays["lengths"] = np.array([new for _, new in rows], np.int32)
    codes = {
        name: TensorProto.INT32 if array.dtype == np.int32 else TensorProto.FLOAT for name, array in arrays.items()
    }
    codes["pk"] = codes["pv"] = TensorProto.FLOAT
    node = helper.make_node(
        "GroupQueryAttention",
        inputs,
        ["y", "k", "v"],
        domain="com.microsoft",
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        do_rotary=1,
    )
    session = _session(node, codes, ["y", "k", "v"], "com.microsoft", threads)
    output = _value(np.empty((batch, longest, shape.heads * shape.head_dim), np.float32))
    bindings = []
    for _ in range(layers):
        dims = (batch, shape.kv_heads, capacity, shape.head_dim)
        cache = [
            _value(_on_pages(random.integers(-8, 9, dims).astype(np.float32) / np.float32(8), pages)) for _ in range(2)
        ]
        binding = session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name, present, value in (("pk", "k", cache[0]), ("pv", "v", cache[1])):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present, value)
        binding.bind_ortvalue_output("y", output)
        bindings.append((binding, arrays))
    return lambda i: session.run_with_iobinding(bindings[i % layers][0])


def read_all(num_bytes: int, threads: int, pages: str) -> Run:
    """Reads `num_bytes` of memory with `threads` threads, the caller's included."""
    parts = np.array_split(_on_pages(np.ones(num_bytes // 8, np.uint64), pages), threads)
    start, end = threading.Barrier(threads), threading.Barrier(threads)

    def read(part: Array) -> None:
        np.bitwise_or.reduce(part)  # NumPy's fastest pass over memory, and it frees the interpreter

    def help_out(part: Array) -> None:
        while True:
            start.wait()
            read(part)
            end.wait()

    for part in parts[1:]:
        threading.Thread(target=help_out, args=(part,), daemon=True).start()

    def run(_: int) -> None:
        start.wait()
        read(parts[0])
        end.wait()

    return run


def compare(
    contestants: dict[str, Contestant], layers: int, seconds: float, clock: Callable[[], float], rest: float
) -> dict[str, tuple[float, float]]:
    """Microseconds a layer: median and fastest. A turn is whole rounds over all layers, and begins after `rest` seconds
    with a round that does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    turn = min(TURN, seconds / 4)

    def measure(contestant: Contestant) -> list[float]:
        result = []
        for i in range(0, layers, contestant.layers):
            before = clock()
            contestant.run(i)
            result.append((clock() - before) * 1e6 / contestant.layers)
        return result

    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or not all(len(found) > 2 for found in times.values()):
        for name, contestant in contestants.items():
            time.sleep(rest)
            measure(contestant)
            start = time.perf_counter()
            while time.perf_counter() - start < turn:
                times[name] += measure(contestant)
    return {name: (statistics.median(values), min(values)) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", choices=sorted(_CODES), default="float32")
    parser.add_argument("--pages", choices=["huge", "small"], default="huge", help="that KV lies on")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each line")
    parser.add_argument("--only", default="", help="part of a line's name")
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    lines = [
        ("decode past 16", [(16, 1)]),
        ("decode past 300", [(300, 1)]),
        ("decode past 4096", [(4096, 1)]),
        ("decode 8 x past 300", [(300, 1)] * 8),
        ("chunk 128 past 1000", [(1000, 128)]),
        ("chunk 512 past 0", [(0, 512)]),
        ("prompt 128 past 1000", [(1000, 128)]),
        ("prompt 512 past 0", [(0, 512)]),
        ("chunk 128 + 7 decodes past 300", [(300, 128), *[(300, 1)] * 7]),
        ("prompt 128 + 7 decodes past 300", [(300, 128), *[(300, 1)] * 7]),
        ("the same with its projections", [(300, 128), *[(300, 1)] * 7]),
    ]
    print(
        f"onnxruntime {onnxruntime.__version__}, {arguments.threads} threads, {arguments.kv} KV on {arguments.pages} "
        f"pages, isa {os.environ.get('ONNX_GENAI_CPU_ISA', 'best')}; us: median (fastest)"
    )
    for shape in SHAPES:
        for name, rows in lines:
            if arguments.only not in name:
                continue
            layers = shape.layers if name.startswith("decode") else 8
            paged = paged_run(
                shape,
                rows,
                arguments.threads,
                layers,
                kv=arguments.kv,
                projected="projections" in name,
                prompts=name.startswith("prompt"),
                pages=arguments.pages,
            )
            gqa = gqa_run(
                shape, rows, arguments.threads, layers, projected="projections" in name, pages=arguments.pages
            )
            contestants = {"paged": Contestant(paged), "gqa": Contestant(gqa)}
            if name.startswith("decode"):
                width = 2 * shape.kv_heads * shape.head_dim * {"float32": 4, "float16": 2, "int8": 1}[arguments.kv]
                total = sum(past + new for past, new in rows)
                if total * width >= 1 << 20:
                    read = read_all(total * width * layers, arguments.threads, arguments.pages)
                    contestants["read"] = Contestant(read, layers)
            rest = REST if arguments.threads > 1 else 0
            result = compare(contestants, layers, arguments.seconds, clock, rest)
            cells = "  ".join(f"{who} {median:9.1f} ({best:9.1f})" for who, (median, best) in result.items())
            ratios = (result["gqa"][i] / result["paged"][i] for i in range(2))
            print(f"{shape.name:13} {name:32} {cells}  gqa/paged {' '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
