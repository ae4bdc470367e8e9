"""GPUs are read from what the driver's own program prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine_tools.doctor.machine import _built_for, find_accelerators

TWO = """cat <<END
0, GPU-aa11, First GPU, 570.1, 81559, 81000
1, GPU-bb22, Second GPU, 570.1, 81559, [N/A]
END"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program called nvidia-smi in front of all others."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


def test_each_gpu_is_read_and_unknown_memory_stays_unknown(smi: Callable[[str], None]) -> None:
    smi(TWO)
    first, second = find_accelerators().gpus
    assert (first.name, first.driver, first.total) == ("First GPU", "570.1", 81559 * 2**20)
    assert (first.free, second.free) == (81000 * 2**20, None)


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("0", ["First GPU"]),
        ("1,0", ["Second GPU", "First GPU"]),
        ("GPU-bb22", ["Second GPU"]),
        ("GPU-bb", ["Second GPU"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["Second GPU"]),
    ],
)
def test_only_visible_gpus_count_in_the_order_that_cuda_sees(
    smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, variable: str, names: list[str]
) -> None:
    smi(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [gpu.name for gpu in find_accelerators().gpus] == names


def test_a_driver_in_trouble_is_told_in_its_own_words(smi: Callable[[str], None]) -> None:
    smi("echo 'Driver/library version mismatch' >&2; exit 18")
    found = find_accelerators()
    assert found.gpus == ()
    assert found.trouble == "nvidia-smi failed (18): Driver/library version mismatch"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cuda: Optional[str] = '12.8'", (12, 8)),
        ("cuda = '13.0'", (13, 0)),
        ("cuda: Optional[str] = None", None),
        ("debug = False", None),
        ("cuda = (", None),
    ],
)
def test_what_torch_was_built_for_is_read_from_its_version_file(
    tmp_path: Path, text: str, version: tuple[int, int] | None
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\n")
    assert _built_for(tmp_path / "version.py") == version
