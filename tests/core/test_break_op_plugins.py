"""Break ops of another distribution: defined at each start, known by name, told when wrong."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import pytest

from engine import LLM, CompilationConfig, CompilationMode
from engine.ops import known_break_ops
from engine.registry import Registry
from engine.runtime.assembly import load_break_ops
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

BODY = """
def Made():
    import torch
    from engine.ops import break_op

    @break_op("{name}", mutates_args=("out",))
    def look(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x)

    return ["{name}"]
"""


def install(make_plugin: PluginMaker, name: str, body: str = BODY) -> None:
    made = body.format(name=name)
    make_plugin("looking", kind="break_ops", body=made, returns="Made()", attributes={})


def test_an_installed_set_is_defined_and_may_be_named(
    make_plugin: PluginMaker, tmp_path: Path
) -> None:
    name = f"break_op_plugin::look_{secrets.token_hex(4)}"
    install(make_plugin, name)
    chosen = CompilationConfig(
        mode=CompilationMode("vllm_compile"),
        backend="eager",
        splitting_ops=("engine::attention", name),
        cache_dir=tmp_path / "cache",
    )
    with LLM(str(write_tiny_model(tmp_path / "model")), compilation_config=chosen) as llm:
        assert name in known_break_ops()
        assert llm.generate("hi")[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def Made():\n    raise OSError('no library')", "OSError: no library"),
        ("def Made():\n    return ['nobody::defined']", "isn't defined with engine.ops.break_op"),
        ("def Made():\n    return ['no name']", "list of operator names"),
    ],
)
def test_a_wrong_set_is_told_and_disturbs_nobody(
    make_plugin: PluginMaker, caplog: pytest.LogCaptureFixture, body: str, says: str
) -> None:
    install(make_plugin, "x", body)
    with caplog.at_level(logging.WARNING):
        load_break_ops(Registry())
    (line,) = [record.getMessage() for record in caplog.records]
    assert says in line
