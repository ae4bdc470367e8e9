"""What figures, arrivals and prompts are, by their definitions."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ConfigError
from engine_tools.bench.figures import Figure, distribution, percentiles
from engine_tools.bench.prompts import Ask, arrival_times, random_asks, read_dataset
from engine_tools.bench.results import Result, figure_table
from engine_tools.bench.running import Timeline


@given(st.lists(st.floats(0, 1e6), min_size=2))
def test_percentiles_are_the_inclusive_quantiles(samples: list[float]) -> None:
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    wanted = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
    assert percentiles(samples) == pytest.approx(wanted, abs=1e-6)


def test_percentiles_are_of_all_samples_and_the_spread_is_of_the_repeats() -> None:
    figure = distribution("TTFT", "ms", [[1.0, 2.0, 9.0], [], [4.0, 5.0, 6.0]])
    assert figure is not None
    assert figure.rounds == (2.0, 5.0)
    assert (figure.median, figure.minimum, figure.maximum) == (3.5, 2.0, 5.0)
    assert figure.percentiles["p50"] == 4.5
    assert distribution("TTFT", "ms", [[], []]) is None


def test_columns_that_no_figure_fills_are_left_out() -> None:
    plain = Figure("requests", "1/s", (2.0, 3.0))
    assert figure_table([plain]).columns == ("figure", "unit", "repeats", "median", "min", "max")
    whole = figure_table([plain, Figure("ITL", "ms", (1.0,), {"p50": 1.0}, floor=0.5)])
    assert whole.columns[2] == "p50"
    assert [row[-1] for row in whole.rows] == ["-", "0.500"]


def test_a_result_has_a_chart_for_each_unit() -> None:
    figures = (Figure("a", "ms", (1.0, 3.0)), Figure("b", "1/s", (2.0,)), Figure("c", "ms", (4.0,)))
    charts = Result("latency", {}, {}, {}, figures).charts()
    assert [[bar.label for bar in chart.bars] for chart in charts] == [["a", "c"], ["b"]]
    assert (charts[0].bars[0].low, charts[0].bars[0].high) == (1.0, 3.0)


def test_the_times_of_a_sequence_follow_from_its_tokens() -> None:
    line = Timeline((0.5, 0.6, 1.1))
    assert (line.ttft, line.e2e) == (0.5, 1.1)
    assert line.tpot == pytest.approx(0.3)
    assert line.itl == pytest.approx([0.1, 0.5])
    assert Timeline((0.5,)).tpot is None


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times = arrival_times(20_001, 8.0, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert min(gaps) >= 0
    # The mean and the deviation of an exponential distribution are the same.
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8, rel=0.03)


def test_arrivals_come_again_with_their_seed() -> None:
    assert arrival_times(50, 2.0, seed=1) == arrival_times(50, 2.0, seed=1)
    assert arrival_times(50, 2.0, seed=1) != arrival_times(50, 2.0, seed=2)
    assert arrival_times(3, float("inf"), seed=1) == [0.0, 0.0, 0.0]


def test_random_prompts_have_their_length_and_differ() -> None:
    asks = list(islice(random_asks(6, 4, vocab_size=1000, seed=0), 20))
    assert {(len(ask.prompt), ask.output_len) for ask in asks} == {(6, 4)}
    assert len({tuple(ask.prompt) for ask in asks}) == 20


def test_a_dataset_has_text_or_ids_and_may_say_how_much_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello", "output_len": 3}\n\n{"prompt": [1, 2], "other": 1}\n')
    assert read_dataset(file, 8) == [Ask("hello", 3), Ask([1, 2], 8)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no prompts"),
        ('{"prompt": "a"}\nnonsense\n', "line 2: "),
        ('{"prompt": 5}\n', "line 1: "),
        ('{"prompt": ""}\n', "line 1: prompt must not be empty"),
        ('{"prompt": "a", "output_len": 0}\n', "output_len at least 1"),
    ],
)
def test_an_unusable_dataset_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_dataset(file, 8)
    with pytest.raises(ConfigError, match="can't be read"):
        read_dataset(tmp_path / "absent", 8)
