"""Decode time and throughput of the default combination on a GPU, with passes on and off.

Dummy weights in bfloat16, fresh random prompts, greedy, end tokens ignored. ms per decode step is
(time of `--new` tokens - time of one) / (new - 1), the least and the second of `--rounds`;
throughput is of 512 requests of 512 tokens in and 128 out, all at once. The first engine of a shape
may compile; the start-up phases of each are in the result.

    python benchmarks/gpu_decode.py --shape llama-3.2-1b --shape qwen3-0.6b --json out.json
    python benchmarks/gpu_decode.py --passes=-small_batch_linear
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch
from decode_timing import Prompts, copy_bandwidth, decode_times, generate, random_prompts

from engine import LLM, CompilationConfig

SHAPES = Path(__file__).parent / "shapes"


def decode_ms(llm: LLM, batch: int, new: int, rounds: int) -> dict[str, float]:
    """Return ms per decode step of a batch."""

    def prompts() -> Prompts:
        return random_prompts(llm, batch, 128)

    generate(llm, prompts(), new)
    times = sorted(decode_times(llm, prompts, new, rounds))
    return {name: round(each, 4) for name, each in zip(("least", "second"), times, strict=False)}


def tokens_per_second(llm: LLM) -> float:
    """Return the output tokens per second of many requests at once."""
    generate(llm, random_prompts(llm, 64, 512), 128)
    seconds, _ = generate(llm, random_prompts(llm, 512, 512), 128)
    return 512 * 128 / seconds


@click.command()
@click.option("--shape", "shapes", multiple=True, default=("llama-3.2-1b",))
@click.option("--batch", "batches", multiple=True, type=int, default=(1, 8, 32, 128))
@click.option("--passes", multiple=True, help="Switches: +name or -name.")
@click.option("--new", default=128)
@click.option("--rounds", default=4)
@click.option("--throughput/--no-throughput", default=True)
@click.option("--json", "path", type=click.Path(path_type=Path))
def main(
    shapes: tuple[str, ...],
    batches: tuple[int, ...],
    passes: tuple[str, ...],
    new: int,
    rounds: int,
    throughput: bool,
    path: Path | None,
) -> None:
    """Measure each shape; print a line for each figure and write JSON."""
    cells: list[dict[str, Any]] = []
    bandwidth = copy_bandwidth()
    for shape in shapes:
        with LLM(
            str(SHAPES / shape),
            load_format="dummy",
            skip_tokenizer=True,
            dtype="bfloat16",
            max_model_len=768,
            max_num_seqs=512,
            enable_prefix_caching=False,
            compilation_config=CompilationConfig(passes=passes),
        ) as llm:
            ledger = llm.core.ledger
            cell: dict[str, Any] = {"shape": shape, "passes": passes, "ready_s": ledger.seconds}
            cell |= {"phases": ledger.phases, "fired": ledger.passes}
            cell["weight_bytes"] = llm.core.num_parameters * torch.bfloat16.itemsize
            click.echo(f"{shape}: ready in {ledger.seconds:.1f} s; {ledger.passes}")
            for batch in batches:
                cell[f"ms_{batch}"] = decode_ms(llm, batch, new, rounds)
                click.echo(f"  batch {batch}: {cell[f'ms_{batch}']} ms per step")
            if throughput:
                cell["tokens_per_second"] = tokens_per_second(llm)
                click.echo(f"  {cell['tokens_per_second']:.0f} tokens per second")
        cells.append(cell)
        if path is not None:
            report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
            whole = {**report, "copy_gb_s": bandwidth / 1e9, "cells": cells}
            path.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
