"""Triton attention equals a dense float64 reference: in the interpreter here, for real on a GPU."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention import AttentionSpec, Rotation
from engine.batch import BatchShape
from engine.ops import qk_norm_rope
from engine.testing import AttentionConformance
from engine.testing.attention import History
from engine.testing.paged import attention_inputs

pytest.importorskip("triton", reason="the kernels need Triton, which this platform hasn't")

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 6e-3}
GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytestmark = pytest.mark.skipif(
    not GPU and not INTERPRETED, reason="run by test_the_kernels_are_right_in_the_interpreter"
)


class TestContract(AttentionConformance):
    strategy = "triton"
    steps = 2
    block_size = 16
    # Triton's interpreter multiplies small matrices of bfloat16 wrongly.
    dtypes = (torch.float32, torch.float16 if INTERPRETED else torch.bfloat16)


@pytest.fixture
def device() -> str:
    return "cuda" if GPU else "cpu"


@pytest.fixture
def plugin() -> Any:
    from engine_attention_triton.attention import TritonAttention

    return TritonAttention()


def check(pairs: list[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> None:
    for result, reference in pairs:
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(result.double(), reference, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "depth", "window", "cap", "dtype"),
    [
        (4, 1, 64, None, None, torch.float32),
        (4, 2, 8, None, None, torch.float32),
        (6, 2, 16, 7, None, torch.float16),
        (2, 2, 80, None, 2.0, torch.float32),
        (3, 1, 96, 1, None, torch.bfloat16),
        (2, 1, 128, None, None, torch.bfloat16),
        (2, 1, 256, 5, 3.0, torch.float32),
    ],
)
def test_prompts_decode_and_mixtures_equal_the_dense_reference(
    plugin: Any,
    device: str,
    heads: int,
    kv_heads: int,
    depth: int,
    window: int | None,
    cap: float | None,
    dtype: torch.dtype,
) -> None:
    if INTERPRETED and dtype is torch.bfloat16:
        dtype = torch.float16  # the interpreter computes bfloat16 products wrongly
    spec = AttentionSpec(heads, kv_heads, depth, depth**-0.5, window, cap)
    steps = History(plugin, spec, device=device, dtype=dtype, shuffle=1, fill=float("nan"))
    a, b, c = (steps.add() for _ in range(3))
    check(steps.step([(a, 9), (b, 1)]), dtype)
    check(steps.step([(a, 1), (c, 13), (b, 5)], padding=2), dtype)
    check(steps.step([(a, 1), (b, 1), (c, 1)], padding=1), dtype)
    check(steps.step([(a, 1), (b, 1), (c, 1)]), dtype)


@pytest.mark.parametrize(("seed", "splits"), [(0, None), (1, 1), (2, 3)])
def test_random_batches_equal_the_dense_reference(
    plugin: Any, device: str, seed: int, splits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if splits is not None:
        launches = sys.modules["engine_attention_triton.launches"]
        monkeypatch.setattr(launches, "_splits", lambda *_: splits)
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 3))
    depth = int(rng.choice([16, 64]))
    spec = AttentionSpec(
        kv_heads * int(rng.integers(1, 5)),
        kv_heads,
        depth,
        depth**-0.5,
        int(rng.integers(1, 40)) if rng.random() < 0.5 else None,
    )
    steps = History(
        plugin, spec, device=device, block_size=16, num_blocks=512, shuffle=seed, seed=seed
    )
    sequences = [steps.add() for _ in range(4)]
    for turn in range(4):
        rows = [(s, 1 if turn > 1 else int(rng.integers(1, 60))) for s in sequences]
        check(steps.step(rows, padding=int(rng.integers(0, 3))), torch.float32)


@pytest.mark.parametrize("lens", [[1, 1, 1], [1, 5, 3]])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "depth", "turned", "weights", "signed"),
    [(6, 2, 16, 16, (False, False), True), (5, 5, 24, 8, (True, True), False)],
)
def test_rotating_while_storing_equals_rotating_before(
    plugin: Any,
    device: str,
    heads: int,
    kv_heads: int,
    depth: int,
    turned: int,
    weights: tuple[bool, bool],
    signed: bool,
    lens: list[int],
) -> None:
    spec, padding = AttentionSpec(heads, kv_heads, depth, depth**-0.5), 2
    tokens = sum(lens) + padding
    inputs = attention_inputs(
        lens,
        [9 + n for n in lens],
        [[3, 1, 2], [4, 5, 6], [9, 8, 7]],
        8,
        padding=padding,
        device=device,
    )
    # Queries, keys and values side by side, as one projection gives them.
    packed = torch.randn(tokens, heads + 2 * kv_heads, depth, device=device)
    query, key, value = packed.split((heads, kv_heads, kv_heads), dim=1)
    query_weight, key_weight = (torch.randn(depth, device=device) if w else None for w in weights)
    cos, sin = torch.randn(2, tokens, 1, turned, device=device)
    rotation = Rotation(cos, sin, signed, query_weight, key_weight, 1e-5)
    rotate = qk_norm_rope.reference
    plain = (
        rotate(query, query_weight, None, heads, 1e-5, cos, sin, signed),
        rotate(key, None, key_weight, 0, 1e-5, cos, sin, signed),
        value,
    )
    start = torch.randn(plugin.cache_shape(spec, 12, 8), device=device)
    caches, outs = [start.clone(), start.clone()], torch.full((2, tokens, heads, depth), 7.0)
    outs = outs.to(device)
    step = plugin.begin_step(inputs)
    plugin.forward(*plain, outs[0], caches[0], spec, step)
    plugin.forward_rotating(query, key, value, rotation, outs[1], caches[1], spec, step)
    torch.testing.assert_close(caches[1], caches[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)


def test_padded_rows_leave_the_reserved_block_alone(plugin: Any, device: str) -> None:
    spec = AttentionSpec(2, 1, 16, 0.25)
    steps = History(plugin, spec, device=device, fill=7.0)
    a, b = steps.add(), steps.add()
    steps.step([(a, 6), (b, 3)], padding=4)
    steps.step([(a, 1), (b, 1)], padding=4)
    assert (steps.cache[:, 0] == 7.0).all()


def test_the_launch_depends_on_the_padded_shape_only(
    plugin: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["engine_attention_triton.launches"]
    grids: list[tuple[str, Any]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            def launch(*_args: Any, **constants: Any) -> None:
                fixed = {k: v for k, v in constants.items() if not isinstance(v, torch.Tensor)}
                grids.append((self.name, (grid, fixed)))

            return launch

    for name in ("store_kv", "attend_any", "attend_decode", "join_splits"):
        monkeypatch.setattr(module, name, Kernel(name))
    spec = AttentionSpec(2, 1, 16, 0.25)
    query = torch.zeros(8, 2, 16, device=device)
    key = torch.zeros(8, 1, 16, device=device)
    cache = torch.zeros(plugin.cache_shape(spec, 64, 4), device=device)
    launches = []
    for lens in ([1, 5, 2], [3, 2, 3]):
        grids.clear()
        inputs = attention_inputs(lens, [50, 9, 40], [[1] * 13] * 3, 4, device=device)
        plugin.forward(query, key, key, query, cache, spec, plugin.begin_step(inputs))
        launches.append(list(grids))
    assert launches[0] == launches[1]
    assert isinstance(inputs.shape, BatchShape)


def test_it_refuses_heads_that_are_not_packed(plugin: Any, device: str) -> None:
    spec = AttentionSpec(2, 1, 16, 0.25)
    inputs = attention_inputs([2], [2], [[1]], 4, device=device)
    query = torch.zeros(2, 2, 32, device=device)[..., ::2]
    key = torch.zeros(2, 1, 16, device=device)
    cache = torch.zeros(plugin.cache_shape(spec, 8, 4), device=device)
    with pytest.raises(ValueError, match="packed heads"):
        plugin.forward(query, key, key, query, cache, spec, plugin.begin_step(inputs))
