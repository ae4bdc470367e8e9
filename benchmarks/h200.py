"""Everything that is claimed of the default combination on one GPU, within ten minutes.

Runs the other scripts in slices, correctness first, and prints each figure beside its floor (all
weights read once, at the measured copy bandwidth) and beside the peer's (`peers.json`). A slice
that runs out of time is told and leaves what it measured so far. Needs an idle GPU. The slice
`matrix` (all combinations of two layers in float32, token by token) runs when it is asked for.

    python benchmarks/h200.py --json results.json
    python benchmarks/h200.py --slice decode --shape qwen3-0.6b
    python benchmarks/h200.py --show results.json      # print the table of an earlier run
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SHAPES = ("llama-3.2-1b", "qwen3-0.6b", "llama-3.1-8b")
SLICES = ("correct", "decode", "starts", "matrix")
_BY_DEFAULT = SLICES[:3]
_CORRECT = "--modes none vllm_compile --graphs none full_and_piecewise --backends inductor"
_SHORT = "--batch 1 --new 32 --rounds 1 --max-capture 16"
_MATRIX = "--layers 2 --dtype float32 --batch 1 5 --prompt 40 --new 16 --rounds 1 --max-capture 32"
_COMPARED = {
    ("none", "none"): "everything off",
    ("vllm_compile", "full_and_piecewise"): "default",
}
_FASTER_IS_MORE = "tokens_per_second"


def commands(slice_name: str, shapes: Sequence[str]) -> Iterator[list[str]]:
    """Yield the scripts of a slice, with their arguments."""
    if slice_name == "matrix":
        yield ["gpu_matrix.py", "--shape", shapes[0], *_MATRIX.split()]
    for shape in shapes:
        if slice_name == "correct":
            yield ["gpu_matrix.py", "--shape", shape, *_CORRECT.split(), *_SHORT.split()]
        elif slice_name == "decode":
            yield ["gpu_decode.py", "--shape", shape, "--rounds", "2"]
        elif slice_name == "starts":
            yield ["compile_start.py", "--shape", shape, "--modes", "vllm_compile"]


def run(command: Sequence[str], seconds: float) -> tuple[dict[str, Any], str]:
    """Run one script; return what it wrote, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        script, *rest = command
        line = [sys.executable, str(HERE / script), *rest, "--json", str(result)]
        problem = ""
        try:
            done = subprocess.run(line, timeout=max(1.0, seconds), check=False)
            problem = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = "out of time"
        return (json.loads(result.read_text()) if result.is_file() else {}), problem


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the figures of each shape under the names that `peers.json` has."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        for shape, name, value in (*_deviations(result), *_speeds(result), *_starts(result)):
            found.setdefault(shape, {})[name] = value
    return found


def _deviations(result: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield how far from float32 the cells of a matrix are, by shape and name."""
    arguments = result.get("arguments", {})
    for cell in result.get("cells", ()) if arguments.get("dtype") == "bfloat16" else ():
        if (which := _COMPARED.get((cell["mode"], cell["graphs"]))) is not None:
            yield arguments["shape"], f"from float32, {which}", cell["deviation"]


def _speeds(result: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield decode steps, throughput and floor."""
    for cell in result.get("cells", ()):
        for name, value in cell.items() if "shape" in cell else ():
            if name.startswith("ms_"):
                yield cell["shape"], name, value["least"]
            elif name == _FASTER_IS_MORE:
                yield cell["shape"], name, value
            elif name == "weight_bytes" and "copy_gb_s" in result:
                yield cell["shape"], "floor_ms", 1e-6 * value / result["copy_gb_s"]


def _starts(result: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield seconds of cold and warm starts."""
    for shape in SHAPES:
        for kind, run_of in result.get(shape, {}).items():
            yield shape, f"{kind.split()[-1]}_s", run_of["ready_s"]


def table(found: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the figures beside floor and peer."""
    peers = json.loads((HERE / "peers.json").read_text())
    shown = Table(
        "shape", "figure", "measured", "floor", "times the floor", "peer", "peer ÷ measured"
    )
    shown.title = f"peer: {peers['peer']}"
    for shape, of_shape in found.items():
        for name, value in of_shape.items():
            if name == "floor_ms":
                continue
            floor = of_shape.get("floor_ms") if name.startswith("ms_") else None
            peer = peers["shapes"].get(shape, {}).get(name)
            gain = None
            if peer is not None:
                gain = value / peer if name == _FASTER_IS_MORE else peer / value
            times = None if floor is None else value / floor
            cells = (_text(n) for n in (value, floor, times, peer, gain))
            shown.add_row(shape, name, *cells)
    return shown


def _text(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}" if number >= 1000 else f"{number:.2f}"


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(SHAPES), default=SHAPES)
@click.option("--slice", "slices", multiple=True, type=click.Choice(SLICES), default=_BY_DEFAULT)
@click.option("--limit", default=590.0, help="Seconds for all of it.")
@click.option("--json", "path", type=click.Path(path_type=Path))
@click.option("--show", multiple=True, type=click.Path(path_type=Path, exists=True))
def main(
    shapes: tuple[str, ...],
    slices: tuple[str, ...],
    limit: float,
    path: Path | None,
    show: tuple[Path, ...],
) -> None:
    """Measure and print; exit 1 when something is wrong or didn't finish."""
    end = time.monotonic() + limit
    results: list[dict[str, Any]] = []
    problems: list[str] = []
    for file in show:
        content = json.loads(file.read_text())
        results += content if isinstance(content, list) else [content]
    for slice_name in () if show else slices:
        for command in commands(slice_name, shapes):
            result, problem = run(command, end - time.monotonic())
            results.append(result)
            if problem:
                problems.append(f"{' '.join(command)}: {problem}")
            if path is not None:
                path.write_text(json.dumps(results, indent=1) + "\n")
    Console().print(table(figures(results)))
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
