"""The contract of a backend, and what only this one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_openvino_backend.artifact import pack, unpack
from engine_openvino_backend.backend import OpenVinoBackend

from engine import LLM, SamplingParams
from engine.events import CompiledUnit, Event
from engine.facts import DeviceFacts, Facts, ModelFacts
from engine.testing import BackendConformance
from engine.testing.tiny import write_tiny_model

# From PyTorch, when the graph that it exported is copied.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")


class TestContract(BackendConformance):
    strategy = "openvino_ir"


@pytest.mark.parametrize("mode", ["vllm_compile", "dynamo_trace_once"])
def test_tokens_are_those_of_the_plain_model_and_a_second_start_compiles_nothing(
    tmp_path: Path, mode: str
) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    kept: list[bool] = []

    def see(event: Event) -> None:
        if isinstance(event, CompiledUnit):
            kept.append(event.cached)

    def generate(mode: str, backend: str) -> list[list[int]]:
        kept.clear()
        chosen = {
            "mode": mode,
            "backend": backend,
            "cudagraph_mode": "none",
            "cache_dir": tmp_path / "cache",
        }
        with LLM(model, compilation_config=chosen, on_event=see) as llm:
            return [o.outputs[0].token_ids for o in llm.generate(["a", "hello"], greedy)]

    plain = generate("none", "eager")
    assert generate(mode, "openvino_ir") == plain
    assert not any(kept)
    assert generate(mode, "openvino_ir") == plain
    assert kept
    assert all(kept)


def test_an_artifact_of_another_version_is_refused() -> None:
    data = pack([(b"<xml/>", b"constants")], "2026.4")
    assert unpack(data, "2026.4") == [(b"<xml/>", b"constants")]
    with pytest.raises(ValueError, match=r"OpenVINO 2026.4 made it, this is 2027.0"):
        unpack(data, "2027.0")
    with pytest.raises(ValueError, match="checksum"):
        unpack(data[:-1] + b"X", "2026.4")


def test_another_dtype_is_refused_with_a_remedy() -> None:
    facts = Facts(DeviceFacts("cpu"), ModelFacts("Tiny", "bfloat16", 128), dtype="bfloat16")
    refusal = OpenVinoBackend.refuse(facts)
    assert refusal is not None
    assert "--dtype float32" in refusal.remedy
