"""The plugins that the "write a …" pages show work as they stand, and keep the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, SamplingParams
from engine.registry import Registry
from engine.testing import run_checks
from engine.testing.conformance.suite import Suite
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "write-a-compile-mode.md": ("compile_modes", "whole", {"mode": "whole", "backend": "eager"}),
    "write-a-graph-mode.md": (
        "cudagraph_modes",
        "decode_graphs",
        {"cudagraph_mode": "decode_graphs", "cudagraph_capture_sizes": (1, 2)},
    ),
    "write-a-backend.md": ("backends", "checked", {"mode": "vllm_compile", "backend": "checked"}),
    "write-a-pass.md": (
        "passes",
        "square",
        {"mode": "vllm_compile", "backend": "eager", "passes": ("+square",)},
    ),
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, make_plugin: PluginMaker) -> str:
    """Install a page's plugin; returns the page's name."""
    kind, name, _ = PAGES[request.param]
    make_plugin(name, kind=kind, source=blocks(request.param, "python")[0])
    return str(request.param)


def test_a_page_shows_a_plugin_that_keeps_the_contract(page: str) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks(page, "python")[1], page, "exec"), namespace)
    (suite,) = [
        value
        for name, value in namespace.items()
        if name.startswith("Test") and issubclass(value, Suite)
    ]
    # A file that is named is imported at once; the pages say so.
    reason = {"its_module_is_light": "a single file is imported when it is named"}
    outcomes = run_checks(type("Page", (suite,), {"expected_failures": reason}))
    assert [f"{o.name}: {o.detail}" for o in outcomes if o.state == "failed"] == []
    assert sum(o.state == "passed" for o in outcomes) >= 5


RECORDABLE = """
from engine.testing.recordable_attention import RecordableAttention

class Made(RecordableAttention):
    pass
"""


def test_a_page_shows_a_plugin_that_serves(
    page: str, tmp_path: Path, make_plugin: PluginMaker
) -> None:
    kind, name, chosen = PAGES[page]
    assert name in Registry().names(kind)
    make_plugin("recordable", kind="attention", body=RECORDABLE)
    folder = write_tiny_model(tmp_path / "model")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    settings: dict[str, Any] = {"threads": 1, "optimization_level": 0, "attention": "recordable"}
    with LLM(str(folder), **settings) as llm:
        expected = llm.generate("hello", params)[0].outputs[0].token_ids
    if kind == "cudagraph_modes":
        settings["graph_device"] = "simulated"
    with LLM(str(folder), compilation_config=CompilationConfig(**chosen), **settings) as llm:
        assert llm.generate("hello", params)[0].outputs[0].token_ids == expected
        steps = llm.core.stats().steps
        assert (steps.get("decode_graphs|decode|1|") == 3) == (kind == "cudagraph_modes")
        assert (name in llm.core.ledger.passes) == (kind == "passes")


def test_the_command_lines_of_the_pages_name_the_plugin() -> None:
    for page, (_, name, _) in PAGES.items():
        commands = "\n".join(blocks(page, "sh"))
        assert f"--plugin ./{name}.py" in commands, page
