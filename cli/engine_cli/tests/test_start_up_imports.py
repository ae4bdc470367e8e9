"""What doesn't need torch doesn't load it, and mistakes are answered at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "rich", "fastapi", "uvicorn", "zmq")
PROBE = f"""
import contextlib, io, json, sys
from engine_cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
    code = main(sys.argv[1:])
print(json.dumps([code, [m for m in {HEAVY!r} if m in sys.modules], out.getvalue()]))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--help"], 0, "Serve a model"),
        (["--version"], 0, "torch 2."),
        (["serve", "--help"], 0, "--compilation-mode"),
        (["serve", "--help=graph"], 0, "--cudagraph-mode"),
        (["generate", "--help"], 0, "--temperature"),
        (["chat", "--help"], 0, "--question"),
        (["explain", "--help"], 0, "--json"),
        (["doctor", "--help"], 0, "--port"),
        (["profile", "--help"], 0, "--prompt-tokens"),
        (["profile", "--steps", "0"], 2, "Invalid value for '--steps'"),
        (["bench", "--help"], 0, "throughput"),
        (["bench", "matrix", "--help"], 0, "--graph-modes"),
        (["bench", "serve", "--help"], 0, "--request-rate"),
        (["bench", "matrix", "--backend", "eager"], 2, "use --backends to choose among them"),
        (["bench", "startup", "--report", "x.pdf"], 2, "must end in .html or .png"),
        (["plugins", "--help"], 0, "show"),
        (["compile", "--help"], 0, "--out"),
        (["compile"], 2, "Missing option '--out'"),
        (["cache", "--help"], 0, "explain"),
        (["cache", "list", "--cache-dir", "nowhere"], 0, "0 artifacts"),
        (["srve"], 2, "no such command 'srve'. Did you mean 'serve'?"),
        (["serve", "--dtyp", "x"], 2, "Did you mean '--dtype'?"),
        (["serve", "--dtype", "float33"], 2, "must be auto, float32, bfloat16 or float16"),
        (["serve", "--max-num-seqs", "-5"], 2, "--max-num-seqs=-5: must be greater than or equal"),
        (["serve", "-cc.moed=x"], 2, "-cc.moed: no such setting. Did you mean 'mode'?"),
        (["serve", "--config", "absent.yaml"], 2, "absent.yaml: no such configuration file"),
        (["generate", "hello", "--n", "0"], 2, "--n=0: must be from 1 to 128"),
        (["generate"], 2, "Missing argument"),
    ],
)
def test_help_and_mistakes_load_nothing_heavy(arguments: list[str], code: int, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    got, heavy, output = json.loads(done.stdout)
    assert says in output
    assert heavy == []
    assert got == code
    assert "Traceback" not in output


def test_no_module_of_the_command_line_loads_anything_heavy_when_imported() -> None:
    code = (
        "import sys, pkgutil, importlib, engine_cli\n"
        "names = [m.name for m in pkgutil.iter_modules(engine_cli.__path__)]\n"
        "[importlib.import_module(f'engine_cli.{n}') for n in names]\n"
        "assert len(names) > 10\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
