"""What /metrics shows, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Seconds(Collector):
    """A histogram of times that one thread observes.

    prometheus_client's own takes several locks, which is too much for each token.
    """

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name, self._documentation = name, documentation
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Count a time."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        """Return what is known, as prometheus_client's own histograms."""
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets, self._sum)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        # Series of unlabelled metrics exist from the start, so that a rate can be taken of them.
        self.queued = Gauge(
            "npu_requests_queued", "Requests that the engine has not taken yet", registry=registry
        )
        self.running = Gauge("npu_requests_running", "Requests in the engine", registry=registry)
        self.embedding = Gauge(
            "npu_embedding_requests", "Requests that wait for vectors", registry=registry
        )
        self.prompt_tokens = Counter(
            "npu_prompt_tokens", "Tokens of accepted prompts", registry=registry
        )
        self.generated_tokens = Counter(
            "npu_generated_tokens", "Tokens that the engine generated", registry=registry
        )
        self.cached_tokens = Counter(
            "npu_prompt_tokens_cached",
            "Tokens of prompts that the cache had from earlier requests",
            registry=registry,
        )
        self.guessed_tokens = Counter(
            "npu_guessed_tokens", "Tokens that were run before they were chosen", registry=registry
        )
        self.accepted_tokens = Counter(
            "npu_accepted_tokens", "Guessed tokens that were chosen then", registry=registry
        )
        self.first_token = Seconds(
            "npu_time_to_first_token_seconds",
            "From a request's arrival to its first token, the queue included",
            registry,
        )
        self.inter_token = Seconds(
            "npu_inter_token_seconds", "Between two tokens of a request", registry
        )
        self.blocks = Gauge("npu_cache_blocks", "Blocks of the cache", registry=registry)
        self.blocks_used = Gauge(
            "npu_cache_blocks_used", "Blocks that hold tokens of requests", registry=registry
        )
        self.resident = Gauge(
            "npu_resident_bytes",
            "Memory of a model's process, the device of the embedded NPU included",
            ["process"],
            registry=registry,
        )
        self.preemptions = Counter(
            "npu_preemptions",
            "Requests that gave their blocks to others, to be continued later",
            registry=registry,
        )
        self.cancelled = Counter(
            "npu_requests_cancelled", "Requests whose client went away", registry=registry
        )
        self.engine_restarts = Counter(
            "npu_engine_restarts", "Starts of a model's process after a failure", registry=registry
        )
        self.errors = Counter(
            "npu_errors", "Requests not answered as asked, by kind", ["kind"], registry=registry
        )

    def text(self) -> bytes:
        """Return all of them in Prometheus' text format."""
        return generate_latest(self._registry)
