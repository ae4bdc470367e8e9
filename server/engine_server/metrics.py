"""Counters and latencies for Prometheus.

The names after the prefix are those that dashboards and autoscalers of this field already read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.ledger import StartupLedger
from engine.request import CaptureTotals, EngineStats

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10, 20, 40, 80, 160)
_TOKEN_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.04, 0.07, 0.1, 0.2, 0.5, 1, 5)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Histogram:
    """Counts values by bucket. All are observed by one thread, many times a second: no lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulated counts by upper bound, and the sum of all values."""
        total, cumulated = 0, list[tuple[str, float]]()
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            cumulated.append((f"{bound:g}" if bound < float("inf") else "+Inf", total))
        return cumulated, self._sum


class Metrics(Collector):
    """Everything that is counted, in a registry of its own.

    Args:
        prefix: what every name begins with.

    Attributes:
        registry: to render.
        stats: the engine's counters when they were last asked for.
        settings: the settings in force, by dotted name.
        cache_config: what autoscalers read of the KV cache.
        rejections: requests that weren't admitted, by reason.
        answers: HTTP answers, by method, route and status.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self.stats: EngineStats | None = None
        self.settings: Mapping[str, str] = {}
        self.cache_config: Mapping[str, str] = {}
        self.rejections: Counter[str] = Counter()
        self.answers: Counter[tuple[str, str, str]] = Counter()
        self.time_to_first_token = Histogram(_SECONDS)
        self.inter_token_latency = Histogram(_TOKEN_SECONDS)
        self.request_latency = Histogram(_SECONDS)
        self.queue_time = Histogram(_SECONDS)
        self.prefill_time = Histogram(_SECONDS)
        self.decode_time = Histogram(_SECONDS)
        self.inference_time = Histogram(_SECONDS)
        self.time_per_output_token = Histogram(_TOKEN_SECONDS)
        self.prompt_tokens = Histogram(_COUNTS)
        self.generation_tokens = Histogram(_COUNTS)
        self._http: dict[tuple[str, str], Histogram] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an HTTP answer that has been sent to the end."""
        self.answers[method, route, str(status)] += 1
        key = (method, route)
        if (histogram := self._http.get(key)) is None:
            histogram = self._http[key] = Histogram(_SECONDS)
        histogram.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._front_end()
        if self.settings:
            labels = {name.replace(".", "_"): value for name, value in self.settings.items()}
            name = f"{self._prefix}settings"
            yield InfoMetricFamily(name, "Settings in force.", value=labels)
        if self.stats is not None:
            yield from self._engine(self.stats)

    def _front_end(self) -> Iterator[Metric]:
        yield self._counter(
            "http_requests", "HTTP answers.", ("method", "handler", "status"), self.answers
        )
        duration = HistogramMetricFamily(
            f"{self._prefix}http_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            labels=("method", "handler"),
        )
        for labels, histogram in self._http.items():
            duration.add_metric(labels, *histogram.buckets())
        yield duration
        yield self._counter(
            "admission_rejections",
            "Requests that weren't admitted.",
            ("reason",),
            {(reason,): count for reason, count in self.rejections.items()},
        )
        for name, histogram, text in (
            ("time_to_first_token_seconds", self.time_to_first_token, "Until the first token."),
            ("inter_token_latency_seconds", self.inter_token_latency, "Between two tokens."),
            ("e2e_request_latency_seconds", self.request_latency, "Until the last token."),
            ("request_queue_time_seconds", self.queue_time, "Until a request first ran."),
            ("request_prefill_time_seconds", self.prefill_time, "From then to its first token."),
            ("request_decode_time_seconds", self.decode_time, "From the first to the last."),
            ("request_inference_time_seconds", self.inference_time, "Both together."),
            (
                "request_time_per_output_token_seconds",
                self.time_per_output_token,
                "Average between two tokens of a request.",
            ),
            ("request_prompt_tokens", self.prompt_tokens, "Tokens in a prompt."),
            ("request_generation_tokens", self.generation_tokens, "Tokens made for a prompt."),
        ):
            family = HistogramMetricFamily(f"{self._prefix}{name}", text)
            family.add_metric((), *histogram.buckets())
            yield family

    def _engine(self, stats: EngineStats) -> Iterator[Metric]:
        name = f"{self._prefix}cache_config"
        labels = {**self.cache_config, "num_gpu_blocks": str(stats.num_blocks)}
        yield InfoMetricFamily(name, "The KV cache.", value=labels)
        used = stats.num_blocks - stats.num_free_blocks
        share = used / stats.num_blocks if stats.num_blocks else 0.0
        for name, value, text in (
            ("num_requests_running", stats.num_running, "Sequences that are computed."),
            ("num_requests_waiting", stats.num_waiting, "Sequences that wait."),
            ("kv_cache_usage_perc", share, "Share of the KV cache in use, 0 to 1."),
            ("kv_cache_blocks", stats.num_blocks, "Blocks of the KV cache."),
            ("kv_cache_free_blocks", stats.num_free_blocks, "Blocks that are free."),
        ):
            yield GaugeMetricFamily(f"{self._prefix}{name}", text, value=value)
        for name, value, text in (
            ("prompt_tokens", stats.prompt_tokens, "Prompt tokens computed."),
            ("generation_tokens", stats.generation_tokens, "Tokens made."),
            ("num_preemptions", stats.preemptions, "Sequences put back for want of blocks."),
            ("prefix_cache_queries", stats.prefix_queries, "Prompt tokens looked up."),
            ("prefix_cache_hits", stats.prefix_hits, "Prompt tokens found in the cache."),
            ("padded_tokens", stats.padded_tokens, "Rows computed for padding."),
            ("late_compiles", stats.late_compiles, "Compilations after the start-up."),
        ):
            yield CounterMetricFamily(f"{self._prefix}{name}", text, value=value)
        yield self._counter(
            "request_success",
            "Sequences that ended.",
            ("finished_reason",),
            {(reason,): count for reason, count in stats.finished.items()},
        )
        yield self._counter(
            "steps",
            "Steps by how they were executed.",
            ("graph_mode", "kind", "padded_tokens", "reason"),
            {tuple(key.split("|", 3)): count for key, count in stats.steps.items()},
        )
        yield from self._captures(stats.captures)
        yield from self._start(stats.startup)

    def _captures(self, captures: Mapping[str, CaptureTotals]) -> Iterator[Metric]:
        outcomes: dict[Any, float] = {}
        for kind, each in captures.items():
            outcomes |= {(kind, "recorded"): each.recorded, (kind, "dropped"): each.dropped}
        yield self._counter(
            "graph_captures",
            "Shapes that were recorded as graphs, and given up.",
            ("kind", "outcome"),
            outcomes,
        )
        seconds = {(kind,): each.seconds for kind, each in captures.items()}
        yield self._counter(
            "graph_capture_seconds", "Seconds spent on recording graphs.", ("kind",), seconds
        )
        taken = {(kind,): each.num_bytes for kind, each in captures.items()}
        yield self._counter(
            "graph_capture_bytes", "Bytes by which their memory pool grew.", ("kind",), taken
        )

    def _start(self, ledger: StartupLedger) -> Iterator[Metric]:
        units = {"compiled": ledger.cache_misses, "loaded": ledger.cache_hits}
        for name, label, values, text in (
            ("startup_seconds", "phase", ledger.phases, "Seconds of each start-up phase."),
            ("compile_seconds", "phase", ledger.compile_phases, "Seconds within compile."),
            ("compiled_units", "source", units, "Callables made at the start, by their source."),
        ):
            family = GaugeMetricFamily(f"{self._prefix}{name}", text, labels=(label,))
            for key, value in values.items():
                family.add_metric((key,), value)
            yield family
        yield GaugeMetricFamily(
            f"{self._prefix}ready_seconds", "Seconds until the engine was ready.", ledger.seconds
        )

    def _counter(
        self, name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]
    ) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric(key, value)
        return family
