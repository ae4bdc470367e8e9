"""What the fused operators and the passes win, on one device.

Part `ops`: each operator, for the sizes of a model's layer. First its result is compared with the
reference in float64 (the largest difference over the largest value). Then three ways are timed:
the operator, what inductor makes of its reference, and the reference run eagerly. On CUDA all
calls of a way are one graph, each on buffers of its own (together twice the L2 cache where 64
sets suffice), so launches by the host cost nothing; the figure is the median over replays, per
call. The floor is the bytes that must be read and written over the measured copy bandwidth.
`joined` rows compare several products with one (`horizontal_fusion`); `attention` rows compare
rotation by inductor and then attention with rotating attention (`rope_kv_write`), in decode over
`--context` tokens.

Part `engine`: decode ms per step of the whole engine with dummy weights, passes on and off, under
`vllm_compile` and `full_and_piecewise`: (time of `--new` tokens - time of one) / (new - 1), the
median and least of `--rounds`. `off` runs first and again at the end: the difference of the two is
noise. What doesn't fit in `--budget` seconds is named and left out.

    python benchmarks/passes.py --part ops
    python benchmarks/passes.py --part engine --shape llama-3.2-1b
    python benchmarks/passes.py --device cpu        # tiny sizes: shows that the script works
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from engine import LLM, CompilationConfig, EngineError, Registry, SamplingParams
from engine.attention import AttentionSpec, Rotation
from engine.events import Event, ModelCompiled
from engine.ops import add_rms_norm, qk_norm_rope, silu_mul

SHAPES = Path(__file__).parent / "shapes"
RESULTS = Path(__file__).parent / "results"
NAMES = ("llama-3.2-1b", "qwen3-0.6b")
TOKENS = (1, 8, 32, 128, 2048)
BATCHES = (1, 8, 32, 128)
BLOCK = 16
OURS = ("silu_mul", "add_rms_norm", "qk_norm_rope", "rope_kv_write")
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "model_type": "qwen3",
}
Arguments = tuple[Any, ...]
Way = Callable[..., Any]


class Clock:
    """Times calls on one device.

    Args:
        device: `cuda` or `cpu`.
        replays: how often each set of calls is timed; the median counts.
    """

    def __init__(self, device: str, replays: int) -> None:
        self.device, self.replays = device, replays
        self.l2 = 2**20
        if device == "cuda":
            self.l2 = torch.cuda.get_device_properties(0).L2_cache_size
        size = 2**29 if device == "cuda" else 2**24
        source = torch.ones(size, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        seconds = self.microseconds(target.copy_, [(source,)]) / 1e6
        self.bandwidth = 2 * source.numel() * 4 / seconds

    def microseconds(self, call: Way, sets: list[Arguments]) -> float:
        """Return the median time of one call, over calls on each of the sets."""
        for arguments in sets[:3]:
            call(*arguments)
        return self._on_gpu(call, sets) if self.device == "cuda" else self._on_cpu(call, sets)

    def _on_cpu(self, call: Way, sets: list[Arguments]) -> float:
        times = []
        for _ in range(self.replays):
            start = time.perf_counter()
            for arguments in sets:
                call(*arguments)
            times.append(time.perf_counter() - start)
        return statistics.median(times) / len(sets) * 1e6

    def _on_gpu(self, call: Way, sets: list[Arguments]) -> float:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # All results live: no call may write where another's output is still in the cache.
            _kept = [call(*arguments) for arguments in sets]
        times = []
        for _ in range(self.replays + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return float(statistics.median(times[2:])) / len(sets) * 1e3

    def sets(self, make: Callable[[], Arguments]) -> list[Arguments]:
        """Return sets of arguments, together larger than the cache unless that takes too many."""
        first = make()
        size = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
        count = min(64, max(16, 2 * self.l2 // max(size, 1) + 1))
        return [first, *(make() for _ in range(count - 1))]


class Layer:
    """The sizes of one layer of a model, and random arguments of those sizes."""

    def __init__(self, config: dict[str, Any], device: str, dtype: torch.dtype) -> None:
        self.hidden, self.inner = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.depth = config.get("head_dim") or self.hidden // self.heads
        self.norms = config["model_type"] == "qwen3"
        self.device, self.dtype = device, dtype

    def rand(self, *shape: int) -> torch.Tensor:
        """Return random numbers of the layer's dtype."""
        return torch.randn(shape, device=self.device).to(self.dtype)

    def silu_mul(self, tokens: int) -> Arguments:
        """Return arguments of the operator."""
        return (self.rand(tokens, 2 * self.inner),)

    def add_rms_norm(self, tokens: int) -> Arguments:
        """Return arguments of the operator."""
        x, residual = self.rand(2, tokens, self.hidden)
        return x, residual, self.rand(self.hidden), 1e-5

    def qk_norm_rope(self, tokens: int) -> Arguments:
        """Return arguments of the operator: a slice of the projection."""
        total = self.heads + self.kv_heads
        x = self.rand(tokens, total + self.kv_heads, self.depth)[:, :total]
        weights = self.rand(2, self.depth) if self.norms else (None, None)
        cos, sin = self.rand(2, tokens, 1, self.depth)
        return x, *weights, self.heads, 1e-6, cos, sin, True

    def moved(self, name: str, tokens: int) -> int:
        """Return the bytes that an operator must read and write."""
        rotated = (self.heads + self.kv_heads) * self.depth
        numbers: dict[str, int] = {
            "silu_mul": 3 * tokens * self.inner,
            "add_rms_norm": 4 * tokens * self.hidden + self.hidden,
            "qk_norm_rope": 2 * tokens * rotated + 2 * tokens * self.depth,
        }
        return numbers[name] * self.dtype.itemsize


def compiled(reference: Way) -> Way:
    """Return what inductor makes of a reference, with the number of tokens symbolic."""
    torch._dynamo.reset()  # noqa: SLF001 - its only name
    call = torch.compile(reference, fullgraph=True)

    def run(*arguments: Any) -> Any:
        for one in arguments:
            if isinstance(one, torch.Tensor) and one.ndim > 1 and one.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(one, 0)  # noqa: SLF001 - its only name
        return call(*arguments)

    return run


def deviation(found: Any, wanted: Any) -> float:
    """Return the largest difference over the largest value."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def wide(arguments: Arguments) -> list[Any]:
    return [one.double() if isinstance(one, torch.Tensor) else one for one in arguments]


def operator_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """Check and time each operator for each number of tokens."""
    operators: dict[str, Any] = {
        "silu_mul": silu_mul,
        "add_rms_norm": add_rms_norm,
        "qk_norm_rope": qk_norm_rope,
    }
    for kind, operator in operators.items():
        by_inductor = compiled(operator.reference)
        for count in tokens:
            sets = clock.sets(lambda: getattr(layer, kind)(count))  # noqa: B023 - called at once
            wanted = operator.reference(*wide(sets[0]))
            yield {
                "shape": name,
                "what": kind,
                "tokens": count,
                "error": deviation(operator(*sets[0]), wanted),
                "error inductor": deviation(by_inductor(*sets[0]), wanted),
                "ours µs": clock.microseconds(operator.overload, sets),
                "inductor µs": clock.microseconds(by_inductor, sets),
                "eager µs": clock.microseconds(operator.reference, sets),
                "floor µs": layer.moved(kind, count) / clock.bandwidth * 1e6,
            }


def joined_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """Time one product beside the several that it stands for."""
    query, key = layer.heads * layer.depth, layer.kv_heads * layer.depth
    for kind, sizes in (("q, k, v", [query, key, key]), ("gate, up", [layer.inner] * 2)):

        def apart(x: torch.Tensor, weight: torch.Tensor, sizes: list[int] = sizes) -> Any:
            return [F.linear(x, part) for part in weight.split(sizes)]

        for count in tokens:

            def make(count: int = count, sizes: list[int] = sizes) -> Arguments:
                return layer.rand(count, layer.hidden), layer.rand(sum(sizes), layer.hidden)

            sets = clock.sets(make)
            joined = F.linear(*sets[0]).split(sizes, dim=-1)
            wanted = F.linear(*(one.double() for one in sets[0])).split(sizes, dim=-1)
            yield {
                "shape": name,
                "what": f"joined {kind}",
                "tokens": count,
                "error": deviation(tuple(joined), wanted),
                "error inductor": deviation(tuple(apart(*sets[0])), wanted),
                "ours µs": clock.microseconds(F.linear, sets),
                "eager µs": clock.microseconds(apart, sets),
                "floor µs": sum(t.numel() for t in sets[0])
                * layer.dtype.itemsize
                / clock.bandwidth
                * 1e6,
            }


def attention_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int], context: int
) -> Iterator[dict[str, Any]]:
    """Time rotation and attention beside rotating attention, in decode."""
    from engine.testing.paged import attention_inputs

    attention: Any = Registry().load("attention", "triton")()
    spec = AttentionSpec(layer.heads, layer.kv_heads, layer.depth, layer.depth**-0.5)
    rotate = compiled(qk_norm_rope.reference)
    width = context // BLOCK + 1
    for count in [n for n in tokens if n <= max(BATCHES)]:
        tables = [range(1 + row * width, 1 + (row + 1) * width) for row in range(count)]
        shape = attention.cache_shape(spec, count * width + 1, BLOCK)
        inputs = attention_inputs(
            [1] * count, [context] * count, [list(row) for row in tables], BLOCK, device="cuda"
        )
        step = attention.begin_step(inputs)

        def make(count: int = count, shape: Any = shape) -> Arguments:
            out = layer.rand(count, layer.heads, layer.depth)
            value = layer.rand(count, layer.kv_heads, layer.depth)
            return *layer.qk_norm_rope(count), value, out, layer.rand(*shape)

        def apart(*a: Any, step: Any = step) -> torch.Tensor:
            rotated = rotate(*a[:8])
            query, key = rotated[:, : layer.heads], rotated[:, layer.heads :]
            attention.forward(query, key, *a[8:], spec, step)
            return a[9]  # type: ignore[no-any-return]  # the output

        def together(*a: Any, step: Any = step) -> torch.Tensor:
            rotation = Rotation(a[5], a[6], a[7], a[1], a[2], a[4])
            query, key = a[0][:, : layer.heads], a[0][:, layer.heads :]
            attention.forward_rotating(query, key, a[8], rotation, a[9], a[10], spec, step)
            return a[9]  # type: ignore[no-any-return]  # the output

        sets = [make() for _ in range(16)]
        wanted = apart(*sets[0]).double()
        yield {
            "shape": name,
            "what": "attention, rotating",
            "tokens": count,
            "error": deviation(together(*sets[0]), wanted),
            "ours µs": clock.microseconds(together, sets),
            "inductor µs": clock.microseconds(apart, sets),
            "floor µs": 2
            * count
            * context
            * layer.kv_heads
            * layer.depth
            * layer.dtype.itemsize
            / clock.bandwidth
            * 1e6,
        }


def engine_cells() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what is started: a label, the model implementation, the passes that are on."""
    on: dict[str, tuple[str, ...]] = {label: (label,) for label in OURS}
    on["all of them"] = ("silu_mul", "add_rms_norm", "rope_kv_write")
    cells = [("off", "llama", ()), *((label, "llama", passes) for label, passes in on.items())]
    cells += [("fallback, off", "transformers", ())]
    cells += [("fallback, horizontal_fusion", "transformers", ("horizontal_fusion",))]
    cells += [("fallback, all", "transformers", ("horizontal_fusion", *on["all of them"]))]
    return [*cells, ("off, again", "llama", ())]


def engine_row(
    folder: Path, cell: tuple[str, str, tuple[str, ...]], options: dict[str, Any]
) -> dict[str, Any]:
    """Start one engine with some passes on, time its decode, and take it down."""
    label, implementation, passes = cell
    fired: dict[str, int] = {}

    def watch(event: Event) -> None:
        if isinstance(event, ModelCompiled):
            fired.update(event.report.passes)

    on_gpu = options["device"] == "cuda"
    switches = {name: f"-{name}" for name in Registry().names("passes")}
    switches |= {name: f"+{name}" for name in passes}
    start = time.perf_counter()
    llm = LLM(
        str(folder),
        on_event=watch,
        load_format="dummy" if on_gpu else "auto",
        skip_tokenizer=True,
        device=options["device"],
        dtype=options["dtype"],
        model_impl=implementation,
        max_model_len=options["prompt"] + options["new"],
        max_num_seqs=max(options["batches"]),
        enable_prefix_caching=False,
        compilation_config=CompilationConfig(
            mode="vllm_compile",
            cudagraph_mode="full_and_piecewise" if on_gpu else "none",
            backend=options["backend"],
            cudagraph_capture_sizes=options["batches"] if on_gpu else None,
            passes=tuple(switches.values()),
        ),
    )
    row: dict[str, Any] = {"passes": label, "ready s": time.perf_counter() - start, "fired": fired}
    try:
        for batch in options["batches"]:
            prompts = torch.randint(llm.core.vocab_size, (batch, options["prompt"])).tolist()
            times = decode_times(llm, prompts, options["new"], options["rounds"])
            row[f"ms {batch}"], row[f"least {batch}"] = statistics.median(times), min(times)
        row["late compiles"] = llm.core.stats().late_compiles
    finally:
        llm.close()
        del llm
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    return row


def decode_times(llm: LLM, prompts: list[list[int]], new: int, rounds: int) -> list[float]:
    """Return ms per decode step, of each round."""

    def seconds(count: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        start = time.perf_counter()
        llm.generate(prompts, params, progress=False)
        return time.perf_counter() - start

    seconds(new)
    return [1e3 * (seconds(new) - seconds(1)) / (new - 1) for _ in range(rounds)]


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; a figure's own column says what it is."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(text(key, row.get(key, "")) for key in columns))
    console.print(table)


def text(column: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if column.startswith("error") else f"{value:.3f}"
    if isinstance(value, dict):
        return " ".join(f"{key}:{times}" for key, times in value.items() if times)
    return str(value)


def run_operators(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Run part `ops` for each shape."""
    rows: list[dict[str, Any]] = []
    dtype = getattr(torch, options["dtype"])
    clock = Clock(options["device"], options["replays"])
    with torch.inference_mode():
        for name, config in options["configs"].items():
            layer = Layer(config, options["device"], dtype)
            tokens = options["tokens"]
            rows += operator_rows(clock, name, layer, tokens)
            rows += joined_rows(clock, name, layer, tokens)
            if options["device"] == "cuda":
                rows += attention_rows(clock, name, layer, tokens, options["prompt"] + 64)
            gc.collect()
            if options["device"] == "cuda":
                torch.cuda.empty_cache()
    options["copy GB/s"] = clock.bandwidth / 1e9
    return rows


def run_engine(options: dict[str, Any], deadline: float) -> list[dict[str, Any]]:
    """Run part `engine` for each shape, as far as the time goes."""
    rows: list[dict[str, Any]] = []
    longest = 0.0
    for name, folder in options["folders"].items():
        for cell in engine_cells():
            start = time.perf_counter()
            if start + longest > deadline:
                click.echo(f"left out, no time: {name}, {cell[0]}")
                continue
            try:
                rows.append({"shape": name, **engine_row(folder, cell, options)})
            except EngineError as error:
                click.echo(f"refused: {name}, {cell[0]}: {error}")
            longest = max(longest, time.perf_counter() - start)
            click.echo(f"{name}, {cell[0]}: {time.perf_counter() - start:.1f} s")
    return rows


@click.command()
@click.option("--part", type=click.Choice(["ops", "engine", "all"]), default="all")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--shape", "shapes", multiple=True, default=NAMES, help="A folder in shapes/.")
@click.option("--tokens", multiple=True, type=int, default=TOKENS, help="Of the operators.")
@click.option("--batch", "batches", multiple=True, type=int, default=BATCHES)
@click.option("--backend", default="inductor")
@click.option("--prompt", default=128)
@click.option("--new", default=64)
@click.option("--rounds", default=5)
@click.option("--replays", default=30)
@click.option("--budget", default=270.0, help="Seconds; engines that don't fit are left out.")
@click.option("--json", "path", type=click.Path(path_type=Path))
def main(part: str, shapes: tuple[str, ...], budget: float, path: Path | None, **rest: Any) -> None:
    """Measure what the operators and passes win; print tables and write JSON."""
    deadline = time.perf_counter() + budget
    options: dict[str, Any] = dict(rest)
    on_gpu = options["device"] == "cuda"
    with tempfile.TemporaryDirectory() as scratch:
        if on_gpu:
            options |= {"dtype": "bfloat16", "folders": {n: SHAPES / n for n in shapes}}
        else:
            from engine.testing.tiny import write_tiny_model

            folder = write_tiny_model(Path(scratch) / "tiny")
            options |= {"dtype": "float32", "folders": {"tiny": folder}, "rounds": 1, "replays": 3}
            options |= {"prompt": 8, "new": 8, "batches": (1, 2), "tokens": (1, 8)}
        options["configs"] = {
            name: json.loads((folder / "config.json").read_text()) if on_gpu else TINY
            for name, folder in options["folders"].items()
        }
        found: dict[str, list[dict[str, Any]]] = {}
        console = Console(width=None if sys.stdout.isatty() else 160)
        if part in ("ops", "all"):
            found["ops"] = run_operators(options)
            show(console, "one layer's operators, per call", found["ops"])
        if part in ("engine", "all"):
            found["engine"] = run_engine(options, deadline)
            show(console, "decode, ms per step", found["engine"])
    kept = {k: v for k, v in options.items() if k not in ("folders", "configs")}
    report = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "options": kept,
        **found,
    }
    path = path or RESULTS / f"passes-{part}-{options['device']}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    click.echo(f"written to {path}")


if __name__ == "__main__":
    main()
