"""Recorded graphs on a real GPU: tokens, counts and memory. Under three minutes; exit 1 on a fault.

Two layers of the Llama-3.2-1B shape with dummy float32 weights, so that tokens must be equal
exactly. Each line says ok or FAULT, what was checked, and the numbers.

    python benchmarks/gpu_graphs.py            # compile mode none
    python benchmarks/gpu_graphs.py --modes none dynamo_trace_once --backend eager
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine import LLM, CompilationConfig, ConfigError, SamplingParams
from engine.events import Event, GraphCaptured, StepRan

SHAPE = Path(__file__).parent / "shapes" / "llama-3.2-1b"
SIZES = (1, 4, 16)
NEW = 16
RECORDING = ("piecewise", "full", "full_decode_only", "full_and_piecewise")
FIRST_STEP = {
    "piecewise": "piecewise|16|",
    "full": "full|16|",
    "full_decode_only": "eager|15|not a decode step",
    "full_and_piecewise": "piecewise|16|",
}
GRAPHS = {"piecewise": 3, "full": 5, "full_decode_only": 2, "full_and_piecewise": 5}
"""Shapes that are recorded for SIZES with eight sequences: 16 is no size for decode."""
MIB = 2**20


class Report:
    """Prints and counts."""

    def __init__(self) -> None:
        self.faults = 0

    def check(self, name: str, right: bool, detail: object = "") -> None:
        """Print one line."""
        self.faults += not right
        print(f"{'ok   ' if right else 'FAULT'} {name:46s} {detail}", flush=True)


class Watch:
    """Collects events of one engine."""

    def __init__(self) -> None:
        self.steps: list[StepRan] = []
        self.captured: list[GraphCaptured] = []

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        if isinstance(event, StepRan):
            self.steps.append(event)
        elif isinstance(event, GraphCaptured):
            self.captured.append(event)


@contextmanager
def engine(watch: Watch, compilation: dict[str, Any], **settings: Any) -> Iterator[LLM]:
    """Start an engine and take all of it down."""
    defaults: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer": True,
        "dtype": "float32",
        "max_model_len": 640,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "kv_cache_memory": "256MiB",
        "enable_prefix_caching": False,
        "hf_overrides": {"num_hidden_layers": 2},
    }
    config = CompilationConfig(**compilation)
    llm = LLM(str(SHAPE), compilation_config=config, on_event=watch, **{**defaults, **settings})
    try:
        yield llm
    finally:
        llm.close()


def generate(llm: LLM, prompts: list[list[int]], new: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    return [r.outputs[0].token_ids for r in llm.generate(prompts, params, progress=False)]


def random_prompts(count: int, low: int, high: int) -> list[list[int]]:
    return [
        [random.randrange(1000) for _ in range(random.randint(low, high))] for _ in range(count)
    ]


def used() -> int:
    """Return the bytes of the device that are in use, by anybody."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def check_modes(report: Report, mode: str, backend: str) -> None:
    """Tokens and exact counts of each graph mode, recorded before and while serving."""
    three, mixed = random_prompts(3, 5, 5), random_prompts(5, 1, 40)
    with engine(Watch(), {"mode": "none", "cudagraph_mode": "none"}) as llm:
        expected = generate(llm, three, NEW), generate(llm, mixed, NEW)
    for graphs in RECORDING:
        for capture in ("eager", "lazy"):
            watch = Watch()
            chosen = {
                "mode": mode,
                "backend": None if mode == "none" else backend,
                "cudagraph_mode": graphs,
                "cudagraph_capture_sizes": SIZES,
                "capture": capture,
                "on_capture_failure": "abort",
            }
            start = time.perf_counter()
            with engine(watch, chosen) as llm:
                ready = time.perf_counter() - start
                recorded = len(watch.captured)
                tokens = generate(llm, three, NEW)
                steps = dict(llm.core.stats().steps)
                mine = tokens, generate(llm, mixed, NEW)
                late = llm.core.stats().late_compiles
            label = f"{mode} / {graphs} / {capture}"
            report.check(f"{label}: tokens", mine == expected, f"ready in {ready:.1f} s")
            wanted = 0 if capture == "lazy" else GRAPHS[graphs]
            report.check(f"{label}: shapes", recorded == wanted, f"{recorded} of {wanted}")
            report.check(f"{label}: late compiles", late == 0, late)
            if capture == "eager":
                decode = "piecewise|4|" if graphs == "piecewise" else "full|4|"
                exact = {f"{graphs}|{FIRST_STEP[graphs]}": 1, f"{graphs}|{decode}": NEW - 1}
                report.check(f"{label}: steps", steps == exact, steps)
            taken = sum(event.num_bytes for event in watch.captured) / MIB
            seconds = sum(event.seconds for event in watch.captured)
            print(
                f"      {len(watch.captured)} shapes, {taken:.0f} MiB, {seconds:.2f} s", flush=True
            )


def check_debugging(report: Report) -> None:
    """Every replay equals the step without graphs, from break op to break op."""
    for graphs in RECORDING:
        watch = Watch()
        chosen = {
            "mode": "none",
            "cudagraph_mode": graphs,
            "cudagraph_capture_sizes": SIZES,
            "debug_graphs": True,
        }
        with engine(watch, chosen) as llm:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            results = llm.generate(random_prompts(6, 1, 30), params, progress=False)
        failed = [r.outputs[0] for r in results if len(r.outputs[0].token_ids) != 8]
        report.check(f"debug_graphs / {graphs}", not failed, failed[:1])


def check_memory_is_flat(report: Report) -> None:
    """500 decode steps, then 200 prompt lengths twice: nothing grows, nothing is recorded."""
    watch = Watch()
    chosen = {"mode": "none", "cudagraph_mode": "full_and_piecewise"}
    with engine(watch, chosen) as llm:
        recorded = len(watch.captured)
        three = random_prompts(3, 5, 5)
        generate(llm, three, 20)
        before, reserved = used(), torch.cuda.memory_reserved()
        generate(llm, three, 500)
        grown = used() - before, torch.cuda.memory_reserved() - reserved
        report.check("500 steps: memory", max(grown) <= 2 * MIB, f"grown by {grown} bytes")
        prompts = random_prompts(200, 1, 600)
        generate(llm, prompts, 2)
        before, reserved = used(), torch.cuda.memory_reserved()
        generate(llm, random.sample(prompts, len(prompts)), 2)
        grown = used() - before, torch.cuda.memory_reserved() - reserved
        report.check("200 prompt lengths: memory", max(grown) <= 2 * MIB, f"grown by {grown} bytes")
        report.check("200 prompt lengths: graphs", len(watch.captured) == recorded, recorded)
        dropped = [event for event in watch.captured if event.dropped]
        report.check("default sizes: none dropped", not dropped, [e.dropped for e in dropped[:1]])
    left = torch.cuda.memory_allocated()
    with engine(Watch(), chosen) as llm:
        generate(llm, three, 4)
    gc.collect()
    more = torch.cuda.memory_allocated() - left
    # cuBLAS keeps 32 MiB for each of the two streams that were used, until the process ends.
    report.check("closing: workspaces are left", left <= 66 * MIB, f"{left / MIB:.1f} MiB")
    report.check("closing: the next engine adds nothing", more == 0, f"{more} bytes")


def check_budget(report: Report) -> None:
    """The memory table is true, and a share of 0.98 fits or is refused with the one that would."""
    for share in (0.5, 0.98):
        watch = Watch()
        chosen = {"mode": "none", "cudagraph_mode": "full_and_piecewise"}
        settings = {
            "kv_cache_memory": None,
            "memory_utilization": share,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "dtype": "bfloat16",
            # Sixteen layers make blocks large enough for a whole device of them.
            "hf_overrides": {"num_hidden_layers": 16},
        }
        try:
            with engine(watch, chosen, **settings) as llm:
                generate(llm, random_prompts(64, 100, 200), 8)
                taken, total = used(), torch.cuda.mem_get_info()[1]
                for record in llm.resolution.records:
                    if record.setting.startswith("memory."):
                        print(f"      {record.setting:20s} {record.effective:>12s} {record.reason}")
                lost = sum((bool(event.dropped) for event in watch.captured), start=0)
            # What the allocator rounds up is allowed a hundredth of the device.
            right = taken <= total * (share + 0.01)
            report.check(f"share {share}: in use", right, f"{taken / total:.4f} of the device")
            report.check(f"share {share}: none dropped", lost == 0, lost)
        except ConfigError as error:
            told = "--memory-utilization" in str(error) or "lower" in str(error)
            report.check(f"share {share}: refused with the number", told, error)
    try:
        with engine(Watch(), {}, kv_cache_memory=None, memory_utilization=0.005):
            report.check("share 0.005: refused", False, "it started")
    except ConfigError as error:
        report.check("share 0.005: refused", "raise --memory-utilization to" in str(error), error)


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", default=["none"])
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    report, start = Report(), time.perf_counter()
    for mode in args.modes:
        check_modes(report, mode, args.backend)
    check_debugging(report)
    check_memory_is_flat(report)
    check_budget(report)
    print(f"{report.faults} faults, {time.perf_counter() - start:.0f} s")
    return int(report.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
