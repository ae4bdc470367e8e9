"""Every compile mode with every graph mode gives exactly the tokens of neither.

On the simulated graph device; in float32, through the whole engine, with prompts that are
computed in chunks beside sequences that decode.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.events import GraphCaptured, StepRan
from engine.registry import Registry

SIZES = (1, 2, 4, 8)
GRAPHS = Registry().names("cudagraph_modes")
COMPILED = [name for name in Registry().names("compile_modes") if name != "none"]
BACKENDS = [
    pytest.param(name, marks=[] if name == "eager" else pytest.mark.slow)
    for name in Registry().names("backends")
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [[random.randrange(3, 250) for _ in range(length)] for length in (3, 11, 30, 1, 5)]


@pytest.fixture(scope="module")
def references() -> dict[str, list[list[int]]]:
    return {}


@pytest.fixture
def expected(
    run: Any, prompts: list[list[int]], references: dict[str, list[list[int]]]
) -> list[list[int]]:
    """The tokens with everything off."""
    if "tokens" not in references:
        plain = run(prompts, 7, mode="none", cudagraph_mode="none", attention="sdpa")
        references["tokens"] = plain.tokens
    return references["tokens"]


def check(ran: Any, graphs: str, expected: list[list[int]]) -> None:
    assert ran.tokens == expected
    assert ran.late_compiles == 0
    assert not [event.dropped for event in ran.of(GraphCaptured) if event.dropped]
    replayed = [e for e in ran.of(StepRan) if not e.reason]
    assert bool(replayed) == (graphs != "none")
    assert sum(ran.steps.values()) == len(ran.of(StepRan))


@pytest.mark.parametrize("capture", ["eager", "lazy"])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_without_compiling(
    run: Any, prompts: list[list[int]], expected: list[list[int]], graphs: str, capture: str
) -> None:
    settings = {} if graphs == "none" else {"cudagraph_capture_sizes": SIZES, "capture": capture}
    ran = run(prompts, 7, mode="none", cudagraph_mode=graphs, graph_device="simulated", **settings)
    if capture == "eager":
        check(ran, graphs, expected)
    assert ran.tokens == expected


# From modules of PyTorch that inductor imports.
@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", COMPILED)
def test_compiled(
    run: Any, prompts: list[list[int]], expected: list[list[int]], mode: str, backend: str
) -> None:
    for graphs in GRAPHS:
        settings = {} if graphs == "none" else {"cudagraph_capture_sizes": SIZES}
        ran = run(
            prompts,
            7,
            mode=mode,
            backend=backend,
            cudagraph_mode=graphs,
            graph_device="simulated",
            **settings,
        )
        check(ran, graphs, expected)


def test_pieces_around_attention_that_cant_be_recorded(
    run: Any, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    ran = run(
        prompts,
        7,
        cudagraph_mode="piecewise",
        graph_device="simulated",
        attention="sdpa",
        cudagraph_capture_sizes=SIZES,
        debug_graphs=True,
    )
    check(ran, "piecewise", expected)


@pytest.mark.parametrize("graphs", [name for name in GRAPHS if name != "none"])
def test_debugging_finds_nothing_wrong(
    run: Any, prompts: list[list[int]], expected: list[list[int]], graphs: str
) -> None:
    ran = run(
        prompts,
        7,
        cudagraph_mode=graphs,
        graph_device="simulated",
        cudagraph_capture_sizes=SIZES,
        debug_graphs=True,
    )
    check(ran, graphs, expected)
