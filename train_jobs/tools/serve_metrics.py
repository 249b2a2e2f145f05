"""Prometheus metrics of the local server: counts and times only, no texts and no names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INPUTS = (1, 2, 4, 8, 16, 32, 64)


class ServeMetrics:
    """Metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter("serve_requests", "Responses by status code.", ["code"])
        self.closed = self._counter("serve_connections_closed", "Connections closed by the server, by reason.", ["why"])
        self.seconds = Histogram(
            "serve_request_seconds", "Time from a request to its response.", buckets=SECONDS, registry=self.registry
        )
        self.batch_inputs = Histogram(
            "serve_batch_inputs", "Inputs predicted together.", buckets=INPUTS, registry=self.registry
        )
        self.queue = Gauge("serve_queue_requests", "Requests that wait for a batch.", registry=self.registry)
        self.connections = Gauge("serve_connections", "Open connections.", registry=self.registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, labels: list[str]) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)
