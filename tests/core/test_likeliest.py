"""The likeliest token: in torch, in numpy and in Triton's kernels, interpreted here."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ops import likeliest
from engine.runtime.likeliest import likeliest_token

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if GPU else "cpu"
SIZES = (1, 7, 96, 1009, 2048, 4097, 9000)
NAN, INF = float("nan"), float("inf")


def kernels(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from engine.ops import launches

    found: tuple[torch.Tensor, torch.Tensor] = launches.likeliest(logits)
    return found


def numpy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, tokens = likeliest_token(logits.cpu())
    return tokens, torch.stack((tokens.double(), values.double()))


needs_kernels = pytest.mark.skipif(
    not GPU and not INTERPRETED, reason="run by the interpreter's test"
)
WAYS = (
    pytest.param(likeliest, id="operator"),
    pytest.param(likeliest.reference, id="reference"),
    pytest.param(numpy, id="numpy"),
    pytest.param(kernels, id="kernels", marks=needs_kernels),
)


def expected_of(row: list[float]) -> int:
    """Say in plain Python what is meant."""
    missing = [i for i, value in enumerate(row) if value != value]
    return missing[0] if missing else row.index(max(row))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_lowest_id_of_the_largest(way: Callable[..., Any], size: int) -> None:
    dtype = random.choice([torch.float32, torch.float16])
    # Few different values, so that there are ties; rows of a wider tensor: a stride isn't a size.
    logits = torch.randint(-2, 2, (5, size + 3), device=DEVICE).to(dtype)[:, :size]
    logits[1] = -INF
    for row, value in ((2, INF), (3, NAN), (4, NAN)):
        logits[row, random.randrange(size)] = value
    logits[4, random.randrange(size)] = INF
    tokens, numbers = way(logits)
    rows = logits.float().tolist()
    assert tokens.tolist() == [expected_of(row) for row in rows]
    values = torch.tensor([row[token] for row, token in zip(rows, tokens.tolist(), strict=True)])
    assert torch.equal(numbers[0].cpu(), tokens.double().cpu())
    torch.testing.assert_close(numbers[1].cpu(), values.double(), rtol=0, atol=0, equal_nan=True)


@needs_kernels
def test_no_rows_are_no_launch() -> None:
    tokens, numbers = kernels(torch.empty(0, 9, device=DEVICE))
    assert tokens.shape == (0,)
    assert numbers.shape == (2, 0)


@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run as they are")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_are_right_in_the_interpreter() -> None:
    """Triton decides when it is imported whether it interprets, so a process of its own does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "kernels or launch"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(SIZES) + 1} passed" in result.stdout
