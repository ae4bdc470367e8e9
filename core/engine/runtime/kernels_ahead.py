"""Compiles what steps and recordings will launch before any of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from engine.batch import BatchShape
from engine.ops import compiling_ahead
from engine.strategies import GraphJob, GraphStrategy

_EACH_UP_TO = 64
"""Tokens up to which every recorded size is tried: kernels are chosen by size there."""


def compile_kernels(strategy: GraphStrategy, job: GraphJob, largest: BatchShape) -> None:
    """Have the kernels of the largest step, and of what will be recorded, compiled side by side.

    Otherwise each would be compiled when the first step or recording meets it, one by one. The
    launches inside a size differ little between large sizes, so powers of two stand for the rest.

    Args:
        strategy: says what will be recorded.
        job: what it will be given.
        largest: the shape of the largest step.
    """
    planned = strategy.plan(job) if strategy.NEEDS_GRAPHS and not job.lazy else ()
    with compiling_ahead(torch.device("cuda")) as held_back:
        for shape in (largest, *_telling(planned)) if held_back else ():
            with job.dummy_batch(shape) as inputs:
                job.compiled.call(inputs.input_ids, inputs.positions)


def _telling(shapes: Iterable[BatchShape]) -> Iterator[BatchShape]:
    for shape in dict.fromkeys(shapes):
        tokens = shape.num_tokens
        if tokens <= _EACH_UP_TO or tokens & (tokens - 1) == 0:
            yield shape
