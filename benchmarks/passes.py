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
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from decode_timing import decode_times, generate, random_prompts
from pass_operators import Clock, Layer, attention_rows, joined_rows, operator_rows
from rich.console import Console
from rich.table import Table

from engine import LLM, CompilationConfig, EngineError, Registry
from engine.events import Event, ModelCompiled

SHAPES = Path(__file__).parent / "shapes"
RESULTS = Path(__file__).parent / "results"
NAMES = ("llama-3.2-1b", "qwen3-0.6b")
TOKENS = (1, 8, 32, 128, 2048)
BATCHES = (1, 8, 32, 128)
OURS = ("silu_mul", "add_rms_norm", "qk_norm_rope", "rope_kv_write")
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "model_type": "qwen3",
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
            prompts = partial(random_prompts, llm, batch, options["prompt"])
            generate(llm, prompts(), options["new"])
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
