"""The small operators equal their formulas."""

from __future__ import annotations

import pytest
import torch

from engine.ops import apply_rotary, rms_norm, rotary_at, rotary_table, silu_and_mul


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_normalises_in_float32_and_weighs_in_the_dtype(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 5, 32).to(dtype), torch.randn(32).to(dtype)
    wide = x.double()
    scaled = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    result = rms_norm(x, weight, 1e-5)
    assert result.dtype == dtype
    torch.testing.assert_close(result, scaled.to(dtype) * weight)


def test_silu_and_mul_gates_the_second_half() -> None:
    x = torch.randn(4, 10)
    gate, up = x[:, :5], x[:, 5:]
    torch.testing.assert_close(silu_and_mul(x), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("rotated", [8, 4], ids=["whole-head", "half-head"])
def test_rotary_turns_pairs_by_position_times_frequency(rotated: int) -> None:
    inv_freq = torch.rand(rotated // 2)
    positions = torch.tensor([0, 3, 11, 3])
    x = torch.randn(4, 2, 8)
    cos, sin = rotary_at(rotary_table(inv_freq, 12, scale=1.5), positions)
    result = apply_rotary(x, cos, sin)
    half = rotated // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:rotated].double())
    angles = positions[:, None, None].double() * inv_freq.double()
    turned = pairs * torch.polar(torch.full_like(angles, 1.5), angles)
    torch.testing.assert_close(result[..., :half].double(), turned.real, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        result[..., half:rotated].double(), turned.imag, atol=1e-5, rtol=1e-5
    )
    assert torch.equal(result[..., rotated:], x[..., rotated:])


def test_rotated_scores_depend_on_the_distance_only() -> None:
    table = rotary_table(torch.rand(4), 64)
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def score(at: int, before: int) -> torch.Tensor:
        turned_q = apply_rotary(q, *rotary_at(table, torch.tensor([at])))
        turned_k = apply_rotary(k, *rotary_at(table, torch.tensor([at - before])))
        return (turned_q * turned_k).sum()

    torch.testing.assert_close(score(9, 5), score(60, 5), atol=1e-4, rtol=1e-4)
