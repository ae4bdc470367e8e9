"""What is asked of a compile strategy that keeps artifacts: never a wrong one, never a failure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.artifacts import FileStore, MemoryStore
from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.conformance.toys import ExactBackend, ScaledDecoder

if TYPE_CHECKING:
    from engine.plugin import Numerics


def _keeps_artifacts(suite: type[Suite]) -> str:
    keeps = "cache_dir" in suite.plugin().SETTINGS
    return "" if keeps else "it doesn't read cache_dir, so it keeps no artifacts"


class _Watched(MemoryStore):
    """A store that counts what is kept in it."""

    puts = 0

    def put(self, *args: Any, **kwargs: Any) -> None:
        """Keep bytes."""
        self.puts += 1
        super().put(*args, **kwargs)


class CompileCacheChecks(Suite):
    """The part of a compile strategy's suite that concerns the artifact store."""

    if TYPE_CHECKING:
        compiled: Callable[..., Any]

        @property
        def numerics(self) -> Numerics:
            """What the strategy declares."""

    def _start(self, model: ToyDecoder, folder: Path, backend: ExactBackend | None = None) -> Any:
        made = self.compiled(model, backend or ExactBackend(), store=FileStore(folder))
        for num_tokens in (1, 5):
            made.compare(num_tokens, "with an artifact store", self.numerics)
        made.strategy.close()
        return made

    @check()
    def test_artifacts_are_kept_if_and_only_if_it_says_so(self) -> None:
        """A strategy that keeps artifacts reads the setting `cache_dir`, and only then."""
        store = _Watched()
        made = self.compiled(store=store)
        made.strategy.close()
        says = "cache_dir" in self.plugin().SETTINGS
        ask(
            bool(store.puts) == says,
            f"it kept {store.puts} artifacts; cache_dir is {'' if says else 'not '}in SETTINGS",
        )

    @check(needs=_keeps_artifacts)
    def test_a_second_start_compiles_nothing(self) -> None:
        """What a start compiled, the next start of the same model loads."""
        with tempfile.TemporaryDirectory() as folder:
            first, second = (self._start(ToyDecoder(2), Path(folder)) for _ in range(2))
            hits, misses = second.compiled.report.cache_hits, second.compiled.report.cache_misses
            made = len(first.backend.compiled)
            ask(
                (hits, misses) == (made, 0) and not second.backend.compiled,
                f"the first start compiled {made} graphs; the second reports {hits} hits and "
                f"{misses} misses, and compiled {len(second.backend.compiled)}",
            )
            ask(all(unit.cached for unit in second.units), "a hit is told as a compilation")

    @check(needs=_keeps_artifacts)
    def test_another_model_never_gets_its_code(self) -> None:
        """Whatever shapes an artifact is in its key: another depth, width or constant of the
        model, or another backend, never gets an artifact that isn't its own.
        """
        with tempfile.TemporaryDirectory() as folder:
            self._start(ToyDecoder(2), Path(folder))
            for model in (ToyDecoder(3), ScaledDecoder(2), ToyDecoder(2, hidden=32)):
                self._start(model, Path(folder))
            newer = type("Newer", (ExactBackend,), {"VERSION": "2"})()
            made = self._start(ToyDecoder(2), Path(folder), newer)
            ask(
                made.compiled.report.cache_hits == 0,
                "an artifact of another version of the backend was taken",
            )

    @check(needs=_keeps_artifacts)
    def test_a_bad_artifact_is_made_anew_once(self) -> None:
        """An artifact that is empty, cut, flipped or refused by the backend is set aside and made
        anew, with the same results; the start after that loads it.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            made = len(self._start(ToyDecoder(2), folder).backend.compiled)
            for what, spoil in _DAMAGES.items():
                files = sorted(folder.glob("*.artifact"))
                ask(files, "no artifact is left to be spoiled")
                for file in files:
                    spoil(file)
                repaired = self._start(ToyDecoder(2), folder)
                anew = len(repaired.backend.compiled)
                ask(anew == made, f"after artifacts were {what}, {anew} of {made} were made anew")
            again = len(self._start(ToyDecoder(2), folder).backend.compiled)
            ask(not again, f"{again} are still made at each start")


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(bytes(data))


def _foreign(file: Path) -> None:
    """Leave a whole artifact that the backend doesn't know."""
    import json

    header = json.loads(file.read_bytes().partition(b"\n")[0])
    FileStore(file.parent).put(header["key"], b"not a ticket", header["factors"])


_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut in half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": _flip,
    "replaced by a stranger's": _foreign,
}
