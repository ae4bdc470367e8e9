"""One cache directory, several processes: all serve, nothing is compiled twice or left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.artifacts import FileStore, artifact_key
from engine.registry import Registry
from engine.testing.backends import StoringBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

BODY = """
import os, time
from engine.testing.backends import StoringBackend as Base

class Made(Base):
    def compile(self, graph, example_inputs, *, dynamic):
        with open(os.environ["COMPILED"], "a") as log:
            log.write("x")
        time.sleep(0.1)
        return super().compile(graph, example_inputs, dynamic=dynamic)
"""

# Forked rather than started: imports take longer than everything that is tested here.
STARTS = """
import json, os, sys, time
from pathlib import Path
import torch
from engine import LLM, SamplingParams
from engine.testing.compiling import ToyDecoder
from engine.tracing import trace_model
from engine.testing.tiny import write_tiny_model
trace_model(ToyDecoder(1), 64, torch.device("cpu"))  # imports what a trace needs
model, folder, processes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
children = []
while len(children) < processes and (child := os.fork()):
    children.append(child)
if len(children) == processes:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
(folder / f"{os.getpid()}.ready").touch()
while len(list(folder.glob("*.ready"))) < processes:
    time.sleep(0.001)
compilation = {"mode": "vllm_compile", "backend": "storing", "cudagraph_mode": "none",
               "cache_dir": folder / "cache"}
with LLM(model, compilation_config=compilation, max_num_batched_tokens=40, threads=1) as llm:
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    tokens = llm.generate("together", greedy)[0].outputs[0].token_ids
(folder / f"{os.getpid()}.tokens").write_text(json.dumps(list(tokens)))
os._exit(0)
"""


@pytest.mark.slow
def test_engines_that_start_together_compile_once_and_give_the_same_tokens(
    tmp_path: Path, make_plugin: PluginMaker
) -> None:
    made = make_plugin("storing", kind="backends", body=BODY)
    model = write_tiny_model(tmp_path / "model")
    (tmp_path / "run").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(made.folder), "COMPILED": str(tmp_path / "compiled"),
    }  # fmt: skip
    command = [sys.executable, "-c", STARTS, str(model), str(tmp_path / "run"), "6"]
    subprocess.run(command, check=True, timeout=250, env=environment)
    tokens = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("*.tokens")]
    assert len(tokens) == 6
    assert all(one == tokens[0] for one in tokens)
    kept = list((tmp_path / "run/cache/artifacts").iterdir())
    assert {path.suffix for path in kept} == {".artifact"}
    assert (tmp_path / "compiled").read_text() == "x" * len(kept)


KILLED = """
import sys, time
from pathlib import Path
from engine.artifacts import FileStore
from engine.registry import Registry
from engine.testing.backends import StoringBackend
from engine.testing.compiling import ToyDecoder, compile_job

class Hangs(StoringBackend):
    def compile(self, graph, example_inputs, *, dynamic):
        if len(self.graphs) == 1:
            print("in the middle", flush=True)
            time.sleep(250)
        return super().compile(graph, example_inputs, dynamic=dynamic)

strategy = Registry().load("compile_modes", sys.argv[2])()
strategy.compile(compile_job(ToyDecoder(2), Hangs(), store=FileStore(Path(sys.argv[1]))))
"""


def test_a_process_killed_in_the_middle_of_a_compilation_disturbs_nobody(tmp_path: Path) -> None:
    mode = "vllm_compile"
    victim = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "in the middle\n"
    results: list[tuple[int, int]] = []

    def start() -> None:
        strategy, model = Registry().load("compile_modes", mode)(), ToyDecoder(2)
        made = strategy.compile(compile_job(model, StoringBackend(), store=FileStore(tmp_path)))
        assert (run_step(made.call, model, 5) == run_step(model, model, 5)).all()
        results.append((made.report.cache_hits, made.report.cache_misses))

    # One waits for the victim's lock when it dies.
    waiting = threading.Thread(target=start)
    waiting.start()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    waiting.join(timeout=100)
    start()
    (hits, misses), again = results
    assert (hits, misses) == (1, 2)
    assert again == (3, 0)
    assert {path.suffix for path in tmp_path.iterdir()} == {".artifact"}


def test_a_damaged_artifact_met_by_several_at_once_is_set_aside_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    key = artifact_key({"graph": "abc"})
    store.put(key, b"code", {"graph": "abc"})
    store.path(key).write_bytes(b"broken")
    barrier, made = threading.Barrier(4), list[int]()

    def get_or_make() -> None:
        own = FileStore(tmp_path)
        barrier.wait()
        if own.get(key) is None:
            with own.lock(key):
                if own.get(key) is None:
                    made.append(1)
                    own.put(key, b"code", {"graph": "abc"})

    threads = [threading.Thread(target=get_or_make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), store.get(key)) == (1, b"code")
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
