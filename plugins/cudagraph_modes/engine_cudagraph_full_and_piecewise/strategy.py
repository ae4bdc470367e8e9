"""Two registered strategies, one for decode and one for the rest."""

from __future__ import annotations

import torch

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.recording import RECORDING_SETTINGS
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelInputs


class FullAndPiecewise(GraphStrategy):
    """Asks one strategy about decode steps and another about everything else.

    A composition by name through the registry: it records nothing itself, and shares no code
    with what it composes.
    """

    NAME = "full_and_piecewise"
    SUMMARY = "replay decode from whole graphs, other batches from pieces; fastest, most start-up"
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE
    KINDS = ("full", "piecewise")
    SETTINGS = RECORDING_SETTINGS

    _parts: tuple[GraphStrategy, ...] = ()

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan what both plan."""
        rest, decode = job.make("piecewise"), job.make("full_decode_only")
        return (*rest.plan(job), *decode.plan(job))

    def prepare(self, job: GraphJob) -> None:
        """Prepare both; the pieces first, whose activations are the larger ones."""
        self._decode, self._rest = job.make("full_decode_only"), job.make("piecewise")
        self._parts = (self._rest, self._decode)
        for part in self._parts:
            part.prepare(job)

    def dispatch(self, shape: BatchShape) -> Decision:
        """Ask the decode strategy first; what it doesn't record goes to the other."""
        decision = self._decode.dispatch(shape)
        # A shape that is yet to be recorded is the decode strategy's, too.
        return decision if decision.kind in self._decode.KINDS else self._rest.dispatch(shape)

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Run with the strategy that decided."""
        owner = self._decode if decision.kind in self._decode.KINDS else self._rest
        return owner.run(decision, inputs)

    def close(self) -> None:
        """Close both, if there was anything to prepare."""
        for part in self._parts:
            part.close()
