"""What Prometheus is told: counts and times of answers. Nothing of what was in a request, not even how much."""

from __future__ import annotations

from collections.abc import Callable
from time import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]  # when somebody first asked is nobody's business
BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)


class Metrics:
    """Of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "jali_requests", "Answers given, by path and status.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "jali_request_seconds", "From a request's headers to the end of its answer.", ["path"],
            registry=self.registry, buckets=BUCKETS,
        )  # fmt: skip
        self.load_failures = Counter(
            "jali_champion_load_failures", "Champions that could not be served.", registry=self.registry
        )
        self._version = Gauge("jali_champion_version", "The version that is served.", ["name"], registry=self.registry)
        self._age = Gauge("jali_champion_age_seconds", "Since when it is served.", registry=self.registry)
        self._in_touch = Gauge(
            "jali_registry_in_touch", "1 while the registry answers, else 0.", registry=self.registry
        )

    def answered(self, path: str, status: str, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def serves(self, name: str, version: str) -> None:
        began = time()
        self._version.labels(name).set(int(version))
        self._age.set_function(lambda: time() - began)

    def tell_touch(self, in_touch: Callable[[], bool]) -> None:
        """Ask whenever it is read, because silence tells nobody that it has begun."""
        self._in_touch.set_function(lambda: float(in_touch()))

    def text(self) -> bytes:
        return generate_latest(self.registry)
