"""What a test of a pass needs: tiny models, their graphs after some passes, and a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from engine.joined_weights import settle_joins
from engine.models import CausalLM
from engine.passes import apply_passes, order_passes
from engine.registry import Registry
from engine.strategies import ModelCall, Pass
from engine.testing.compiling import ToyDecoder, run_step
from engine.testing.reference import build_like, random_reference
from engine.tracing import Traced, trace_model

LAYERS = 2
_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def tiny_llama() -> PretrainedConfig:
    """Return a configuration with rotation, without norms over heads."""
    return LlamaConfig(**_SIZES)


def tiny_qwen3() -> PretrainedConfig:
    """Return a configuration with norms over the heads of queries and keys."""
    return Qwen3Config(head_dim=8, **_SIZES)


class Changed(ToyDecoder):
    """A toy decoder of one layer whose result goes through one more function.

    Args:
        change: takes hidden [T, 16] and returns [T, …].
    """

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(1)
        self.change = change
        self.scale = torch.nn.Parameter(torch.rand(16) + 0.5, requires_grad=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what `change` makes of hidden."""
        return self.change(super().forward(input_ids, positions)) + 0.5


def random_model(
    implementation: str, config: PretrainedConfig, *, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """Return an installed implementation's model of a configuration, with random weights."""
    plugin = Registry().load("models", implementation)()
    reference = random_reference(config, seed=3)
    return build_like(plugin, reference, dtype=dtype).requires_grad_(requires_grad=False)


def load(*names: str) -> list[Pass]:
    """Return installed passes by name, in the order in which they run."""
    registry = Registry()
    installed = [registry.load("passes", name) for name in registry.names("passes")]
    switches = [f"{'+' if one.NAME in names else '-'}{one.NAME}" for one in installed]
    return [one() for one in order_passes(installed, switches)]


def rewritten(model: CausalLM, passes: Sequence[Pass]) -> tuple[Traced, dict[str, int]]:
    """Trace a model and run passes on its graph; return it, and how often each fired."""
    traced = trace_model(model, 64, torch.device("cpu"))
    fired = apply_passes(traced.graph, passes, "graph")
    return settle_joins(traced), fired


def compare(call: ModelCall, model: CausalLM, sizes: Sequence[int] = (1, 2, 7)) -> None:
    """Check that a changed model gives what the model gives, within rounding."""
    for num_tokens in sizes:
        expected = run_step(model, model, num_tokens, seed=num_tokens)
        found = run_step(call, model, num_tokens, seed=num_tokens)
        tolerance = 2e-5 if expected.dtype == torch.float32 else 4e-2
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
