"""What a test of a compile mode or backend needs: a small decoder, a job, a way to run both.

The decoder has what makes compiling hard and nothing else: equal layers, a break op in each, an
output that is reused by the next layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine import ops
from engine.artifacts import ArtifactStore, MemoryStore
from engine.attention import AttentionInputs, AttentionPlugin, AttentionSpec
from engine.batch import BatchShape
from engine.events import Event, EventBus
from engine.forward_context import ForwardContext, forward_context
from engine.models import CausalLM
from engine.ops import known_break_ops
from engine.strategies import Backend, CompileJob, ModelCall, ModelInputs, Pass

HEADS = 4


class OneRequestAttention(AttentionPlugin):
    """Causal attention over the step's own tokens; keeps nothing between steps."""

    NAME = "one_request"
    SUMMARY = "causal attention within one step, for tests"

    def cache_shape(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of a cache that is never used."""
        return (1,)

    def begin_step(self, inputs: AttentionInputs) -> None:
        """Prepare nothing."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Any,
    ) -> None:
        """Attend to earlier tokens of the step."""
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out.copy_(attended[0].transpose(0, 1))


class ToyLayer(nn.Module):
    """Norm, attention, norm, gated MLP, with residuals."""

    def __init__(self, hidden: int, index: int) -> None:
        super().__init__()
        self.index, self.hidden = index, hidden
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(2 * hidden, hidden, bias=False)
        self.norms = nn.Parameter(torch.rand(2, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden [T, H] to hidden [T, H]."""
        normed = F.rms_norm(x, (self.hidden,), self.norms[0], 1e-5)
        query, key, value = (
            part.view(-1, HEADS, self.hidden // HEADS)
            for part in self.qkv(normed).split(self.hidden, -1)
        )
        x = x + self.o(ops.attention(query, key, value, self.index).reshape(-1, self.hidden))
        gate, up = self.up(F.rms_norm(x, (self.hidden,), self.norms[1], 1e-5)).chunk(2, -1)
        down: torch.Tensor = self.down(F.silu(gate) * up)
        return x + down


class ToyDecoder(CausalLM):
    """A decoder of equal layers with random weights.

    Args:
        layers: how many.
        hidden: width; a multiple of four.
        vocab: number of token ids.
        seed: of the weights.
    """

    def __init__(
        self, layers: int = 3, hidden: int = 16, vocab: int = 50, *, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocab, hidden)
            self.position = nn.Embedding(256, hidden)
            self.layers = nn.ModuleList(ToyLayer(hidden, index) for index in range(layers))
        spec = AttentionSpec(HEADS, HEADS, hidden // HEADS, (hidden // HEADS) ** -0.5)
        self.attention_specs = (spec,) * layers
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H]."""
        x: torch.Tensor = self.embedding(input_ids) + self.position(positions)
        for layer in self.layers:
            x = layer(x)
        return x

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V]."""
        return hidden @ self.embedding.weight.T

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Keep the random weights."""


@contextmanager
def one_request(model: CausalLM, shape: BatchShape) -> Iterator[None]:
    """Set a forward context in which a step is the prompt of one request."""
    caches = [torch.zeros(1)] * len(model.attention_specs)
    attention = OneRequestAttention()
    with forward_context(ForwardContext(shape, attention, None, model.attention_specs, caches)):
        yield


def compile_job(
    model: CausalLM,
    backend: Backend,
    *,
    max_num_tokens: int = 64,
    sizes: tuple[int, ...] = (),
    exact_sizes: tuple[int, ...] = (),
    ranges: tuple[int, ...] = (),
    break_ops: Iterable[str] | None = None,
    passes: tuple[Pass, ...] = (),
    store: ArtifactStore | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> CompileJob:
    """Return what the core would give a compile strategy, for a model on the CPU."""
    # Static buffers, made outside inference mode as the runner's are: PyTorch guards on that.
    ids, positions = torch.zeros(max_num_tokens, dtype=torch.int64), torch.arange(max_num_tokens)

    @contextmanager
    def dummy_batch(shape: BatchShape) -> Iterator[ModelInputs]:
        with one_request(model, shape):
            yield ModelInputs(ids[: shape.num_tokens], positions[: shape.num_tokens])

    events = EventBus()
    if on_event is not None:
        events.subscribe(on_event)
    return CompileJob(
        model=model,
        backend=backend,
        device=torch.device("cpu"),
        max_num_tokens=max_num_tokens,
        sizes=tuple(sorted({*sizes, *exact_sizes})),
        exact_sizes=exact_sizes,
        ranges=ranges or (max_num_tokens,),
        break_ops=frozenset(known_break_ops() if break_ops is None else break_ops),
        passes=passes,
        store=MemoryStore() if store is None else store,
        events=events,
        dummy_batch=dummy_batch,
    )


def run_step(call: ModelCall, model: CausalLM, num_tokens: int, *, seed: int = 0) -> torch.Tensor:
    """Run a model, or a compiled form of it, on one request with random tokens.

    Returns:
        hidden [T, H].
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (num_tokens,), generator=generator)
    positions = torch.arange(num_tokens)
    shape = BatchShape(num_tokens, 1, num_tokens, uniform_decode=False)
    with torch.inference_mode(), one_request(model, shape):
        return call(ids, positions).clone()
