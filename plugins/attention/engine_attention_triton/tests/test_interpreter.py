"""Runs the kernels' own tests where there is no GPU, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton, which this platform hasn't")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real on the GPU")
def test_the_kernels_are_right_in_the_interpreter() -> None:
    # Triton decides at its first import whether it interprets, so this needs a fresh process.
    tests = Path(__file__).with_name("test_triton_attention.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    # One check records on the simulated graph device, which knows no Triton.
    assert "1 skipped" in result.stdout
