"""What earlier starts took, kept beside the artifacts so that the next one can be foretold.

One small file for each combination of model, modes, versions and device. Nothing depends on it:
what can't be read or written is as if it weren't there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.artifacts import artifact_key, artifacts_folder
from engine.ledger import StartupLedger

logger = logging.getLogger(__name__)

_MOST = 64
"""Files that are kept; the ones that were written last."""


class KeptStart(msgspec.Struct, frozen=True):
    """One start.

    Attributes:
        at: when it was ready, in seconds since the epoch.
        ledger: where its time went.
    """

    at: float
    ledger: StartupLedger


class KeptStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The last starts of one combination.

    Attributes:
        compiled: the last one that compiled something; None where there was none.
        loaded: the last one that compiled nothing; all came from the cache, if anything did.
    """

    compiled: KeptStart | None = None
    loaded: KeptStart | None = None


class StartsFolder:
    """The kept starts of one cache directory.

    Args:
        cache_dir: as in `compilation_config.cache_dir`; the default one when None.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.root = artifacts_folder(cache_dir).parent / "starts"

    def path(self, factors: Mapping[str, str]) -> Path:
        """Return the file of a combination."""
        return self.root / f"{artifact_key(factors)}.json"

    def read(self, factors: Mapping[str, str]) -> KeptStarts:
        """Return the last starts of a combination; both None where nothing usable is kept."""
        try:
            return msgspec.json.decode(self.path(factors).read_bytes(), type=KeptStarts)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return KeptStarts()

    def keep(self, factors: Mapping[str, str], ledger: StartupLedger) -> None:
        """Keep a start instead of the last one of its kind; never fails."""
        kept, start = self.read(factors), KeptStart(time.time(), ledger)
        change = {"compiled" if ledger.cache_misses else "loaded": start}
        path = self.path(factors)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, **change)))
            unfinished.replace(path)
            self._drop_oldest()
        except OSError as error:
            logger.info("what this start took isn't kept in %s: %s", self.root, error)
            with suppress(OSError):
                unfinished.unlink()

    def _drop_oldest(self) -> None:
        files = list(self.root.glob("*.json"))
        if len(files) > _MOST:
            files.sort(key=lambda path: path.stat().st_mtime)
            for path in files[:-_MOST]:
                path.unlink(missing_ok=True)
