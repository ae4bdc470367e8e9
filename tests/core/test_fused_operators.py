"""Fused operators: the dispatcher's view of them, and their kernels against a float64 reference.

The kernels run for real on a GPU, and elsewhere in Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from engine.ops import add_rms_norm, is_recordable, operator, qk_norm_rope, silu_mul

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
OPERATORS: dict[str, Any] = {
    "silu_mul": silu_mul,
    "add_rms_norm": add_rms_norm,
    "qk_norm_rope": qk_norm_rope,
}

kernels = pytest.mark.skipif(not GPU and not INTERPRETED, reason="run by the interpreter's test")


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).to(dtype)


def strided(tokens: int, heads: int, depth: int, dtype: torch.dtype) -> torch.Tensor:
    """Heads that lie between others, as a slice of a wider projection has them."""
    return rand(tokens, heads + 3, depth + 4, dtype=dtype)[:, 2:-1, :depth]


def samples(tokens: int, dtype: torch.dtype = torch.float32) -> dict[str, list[tuple[Any, ...]]]:
    """Arguments for each operator: sizes that are powers of two and that aren't, views."""

    def rope(heads: int, depth: int, turned: int, *weights: bool, signed: bool) -> tuple[Any, ...]:
        query, key = (rand(depth, dtype=dtype) if one else None for one in weights)
        tables = rand(2, tokens, 1, turned, dtype=dtype)
        x = strided(tokens, heads, depth, dtype)
        return (x, query, key, heads * 2 // 3, 1e-5, tables[0], tables[1], signed)

    return {
        "silu_mul": [
            (rand(tokens, 2 * 48, dtype=dtype),),
            (rand(1, tokens, 2 * 1031, dtype=dtype),),
            (rand(tokens, 300, dtype=dtype)[:, 8:208],),
        ],
        "add_rms_norm": [
            (*(rand(tokens, size, dtype=dtype) for _ in "xr"), rand(size, dtype=dtype), 1e-5)
            for size in (32, 96, 1025)
        ]
        + [(*(rand(1, tokens, 80, dtype=dtype) for _ in "xr"), rand(80, dtype=dtype), 0.5)],
        "qk_norm_rope": [
            rope(6, 16, 16, False, False, signed=True),
            rope(3, 24, 24, True, True, signed=True),
            rope(5, 80, 32, True, False, signed=False),
            rope(9, 64, 64, False, True, signed=False),
        ],
    }


CASES = [(name, index) for name, several in samples(2).items() for index in range(len(several))]


@pytest.mark.parametrize(("name", "index"), CASES)
def test_an_operator_is_what_the_dispatcher_takes_it_for(name: str, index: int) -> None:
    arguments = samples(3)[name][index]
    torch.library.opcheck(
        OPERATORS[name].overload, arguments, test_utils=("test_schema", "test_faketensor")
    )
    assert is_recordable(OPERATORS[name].overload)


def wide(arguments: tuple[Any, ...]) -> list[Any]:
    return [one.double() if isinstance(one, torch.Tensor) else one for one in arguments]


def test_the_references_hold_what_the_names_say() -> None:
    x, r, w = rand(4, 10), rand(4, 10), rand(10)
    normed, total = add_rms_norm(x, r, w, 0.25)
    assert torch.equal(total, x + r)
    root = ((x + r).pow(2).mean(-1, keepdim=True) + 0.25).sqrt()
    torch.testing.assert_close(normed, (x + r) / root * w)
    torch.testing.assert_close(silu_mul(rand(1, 2) * 0 + 1.0), torch.sigmoid(rand(1, 1) * 0 + 1))
    # One query and one key head, each of one pair: a turn by an angle, against complex numbers.
    heads, angles = rand(5, 2, 2), rand(5, 1, 1)
    cos, sin = (torch.cat((f(angles), f(angles)), -1) for f in (torch.cos, torch.sin))
    turned = torch.view_as_complex(heads) * torch.polar(torch.ones_like(angles), angles)[..., 0]
    result = qk_norm_rope(heads, None, None, 1, 0.0, cos, sin, False)
    torch.testing.assert_close(result, torch.view_as_real(turned))
    sin[..., 0].neg_()
    assert torch.equal(qk_norm_rope(heads, None, None, 1, 0.0, cos, sin, True), result)


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_kernel_equals_the_reference_in_float64(
    name: str, tokens: int, dtype: torch.dtype
) -> None:
    from engine.ops import launches

    for arguments in samples(tokens, dtype)[name]:
        expected = OPERATORS[name].reference(*wide(arguments))
        found = getattr(launches, name)(*arguments)
        pairs = zip(expected, found, strict=True) if name == "add_rms_norm" else [(expected, found)]
        for wanted, got in pairs:
            assert got.dtype == dtype
            assert got.is_contiguous()
            scale = max(1.0, float(wanted.abs().max()))
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=TOLERANCE[dtype] * scale)


@kernels
@pytest.mark.parametrize("name", OPERATORS)
def test_a_step_without_tokens_launches_nothing(name: str) -> None:
    from engine.ops import launches

    for arguments in samples(0)[name]:
        assert getattr(launches, name)(*arguments) is not None


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("name", OPERATORS)
def test_on_a_gpu_the_operator_is_its_kernel(name: str) -> None:
    from engine.ops import launches

    for arguments in samples(5, torch.bfloat16)[name]:
        torch.testing.assert_close(
            OPERATORS[name](*arguments), getattr(launches, name)(*arguments), rtol=0, atol=0
        )


@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run for real on the GPU")
def test_the_kernels_are_right_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton, which this platform hasn't")
    # Triton decides at its first import whether it interprets, so this needs a fresh process.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "equals_the_reference or without_tokens",
    ]
    result = subprocess.run(
        [*command, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "15 passed" in result.stdout, result.stdout


def test_a_kernel_that_can_not_be_loaded_leaves_the_reference() -> None:
    def load() -> Any:
        raise ImportError("no Triton here")

    @operator("engine_test::doubled", fake=torch.empty_like, cuda=load)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.randn(3, device=DEVICE)
    assert torch.equal(doubled(x), x * 2)
    # What CUDA would call, where there is none.
    from engine.ops.operator import _Late

    late = _Late(load, doubled.reference)
    assert torch.equal(late(x), x * 2)
    assert torch.equal(late(x), x * 2)
