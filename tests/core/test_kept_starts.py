"""What earlier starts took: the last of each kind, a bounded number, and never a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.kept_starts import KeptStarts, StartsFolder
from engine.ledger import LedgerCapture, LedgerUnit, StartupLedger

FACTORS = {"model": "a", "torch": "2"}
COLD = StartupLedger(
    seconds=9.5,
    cache_misses=2,
    units=(LedgerUnit("piece 0 [1-8]", 3.0, num_bytes=70),),
    captures=(LedgerCapture("full", (4, 1), 0.5, 1000),),
)
WARM = StartupLedger(seconds=2.0, cache_hits=2)


def test_the_last_start_that_compiled_and_the_last_that_did_not_are_kept(tmp_path: Path) -> None:
    folder = StartsFolder(tmp_path)
    for ledger in (StartupLedger(seconds=99, cache_misses=2), COLD, WARM):
        folder.keep(FACTORS, ledger)
    kept = StartsFolder(tmp_path).read(FACTORS)
    assert kept.compiled is not None
    assert kept.loaded is not None
    assert (kept.compiled.ledger, kept.loaded.ledger) == (COLD, WARM)
    assert kept.compiled.at <= kept.loaded.at


def test_other_factors_have_other_starts(tmp_path: Path) -> None:
    folder = StartsFolder(tmp_path)
    folder.keep(FACTORS, COLD)
    assert folder.read({**FACTORS, "torch": "3"}) == KeptStarts()


def test_only_a_bounded_number_is_kept_and_the_oldest_go(tmp_path: Path) -> None:
    folder = StartsFolder(tmp_path)
    for number in range(70):
        folder.keep({"model": str(number)}, WARM)
        os.utime(folder.path({"model": str(number)}), (number, number))
    files = list(folder.root.iterdir())
    assert len(files) == 64
    assert folder.path({"model": "69"}) in files
    assert folder.path({"model": "0"}) not in files


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"compiled": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_as_if_it_were_not_there_and_is_replaced(
    tmp_path: Path, content: bytes
) -> None:
    folder = StartsFolder(tmp_path)
    folder.keep(FACTORS, WARM)
    folder.path(FACTORS).write_bytes(content)
    assert folder.read(FACTORS) == KeptStarts()
    folder.keep(FACTORS, COLD)
    kept = folder.read(FACTORS)
    assert kept.compiled is not None
    assert kept.loaded is None


def test_a_directory_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "starts").write_text("in the way")
    folder = StartsFolder(tmp_path)
    folder.keep(FACTORS, COLD)
    assert folder.read(FACTORS) == KeptStarts()
