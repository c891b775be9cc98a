"""``/metrics``: vLLM's names for what both have, ``paceline:`` for the controller, as Prometheus reads them.

Steps pay nothing for it: what is not counted anyway (``counters``) is looked up when somebody asks.
"""

from collections.abc import Iterator, Mapping

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from paceline.api.async_engine import AsyncEngine
from paceline.api.async_streams import EngineError
from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from paceline.engine.mixed_plan import MixedPlan
from paceline.serve.counters import Counters, Distribution
from paceline.serve.errors import ApiError

LABELS = ("model_name", "engine")


class Metrics:
    """A collector of ``counters`` and of the state of ``served``, whose thread alone may call ``collect``."""

    def __init__(self, served: AsyncEngine, counters: Counters, model: str) -> None:
        self.served, self.counters, self.labels = served, counters, (model, "0")
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """Nothing: names are known when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric, as prometheus_client asks for them."""
        yield from self._load()
        yield from self._requests()
        yield from self._drafts()
        yield from self._controller()

    def _load(self) -> Iterator[Metric]:
        scheduler, decoder = self.served.engine.scheduler, self.served.engine.decoder
        yield self._gauge("vllm:num_requests_running", "Outputs that have rows.", scheduler.num_running)
        waiting = scheduler.num_waiting + self.served.num_waiting
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for rows.", waiting)
        usage = scheduler.num_tokens / (decoder.rows * decoder.batch.max_length)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the caches that running outputs use, 0 to 1.", usage)

    def _requests(self) -> Iterator[Metric]:
        found = self.counters
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of ended requests.", found.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Generated tokens.", found.generated)
        yield self._counters("vllm:request_success", "Ended outputs, by the reason.", "finished_reason", found.ended_by)
        for name, words, values in (
            ("time_to_first_token_seconds", "From a request's arrival to its first token.", found.first),
            ("inter_token_latency_seconds", "Between two gains of an output, of one token or several.", found.between),
            ("request_time_per_output_token_seconds", "Mean of an output after its first token.", found.per_token),
            ("e2e_request_latency_seconds", "From a request's arrival to its end.", found.whole),
            ("request_queue_time_seconds", "Until a request had a row.", found.queued),
        ):
            yield self._histogram(f"vllm:{name}", words, values)

    def _drafts(self) -> Iterator[Metric]:
        found = self.counters
        drafted, accepted = sum(found.drafted), sum(found.accepted)
        yield self._counter("vllm:spec_decode_num_drafts", "Drafts of ended outputs.", found.num_drafts)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Their tokens.", drafted)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Of these, accepted ones.", accepted)
        by_position = {str(depth): count for depth, count in enumerate(found.accepted)}
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        yield self._counters(name, "The same by position in the draft.", "position", by_position)
        rate, length = accepted / max(1, drafted), found.emitted / max(1, found.row_steps)
        yield self._gauge("sglang:spec_accept_rate", "Accepted over drafted tokens since the start.", rate)
        yield self._gauge("sglang:spec_accept_length", "Tokens of an output per step since the start.", length)
        by_length = {str(length): count for length, count in sorted(found.allowed.items())}
        words = "Steps of ended outputs, by the tokens that they might draft."
        yield self._counters("paceline:output_steps", words, "draft_length", by_length)
        words = "Steps of ended outputs without a draft, by the reason."
        yield self._counters("paceline:no_draft_steps", words, "reason", found.no_draft)
        by_rows = {str(rows): count for rows, count in sorted(found.steps.items())}
        yield self._counters("paceline:steps", "Steps, by the outputs that were running after.", "rows", by_rows)

    def _controller(self) -> Iterator[Metric]:
        engine = self.served.engine
        plan = engine.decoder.plan
        failed = engine.runner.drafter_error is not None
        yield self._gauge("paceline:drafter_failed", "1 once the drafter failed and is no longer asked.", failed)
        speed = engine.speed
        if speed is not None:
            words = "Tokens per second of all steps, and what plain decoding would have given."
            rates = {"drafted": speed.drafted, "plain": speed.plain}
            yield self._gauges("paceline:tokens_per_second", words, "decoding", rates)
        if isinstance(plan, MixedPlan):
            plan = plan.others
        if isinstance(plan, CandidatePlan):
            words = "Number of the drafter that is in use, in their order."
            yield self._gauge("paceline:chosen_drafter", words, plan.chosen)
            plan = plan.controllers[plan.chosen]
        if isinstance(plan, Controller):
            yield from self._decisions(plan)

    def _decisions(self, plan: Controller) -> Iterator[Metric]:
        depths = [state.depth for state in plan.rows.values()]
        mean = sum(depths) / max(1, len(depths))
        yield self._gauge("paceline:draft_length", "Tokens that running outputs draft now, on average.", mean)
        on = "Share of the running outputs that draft."
        yield self._gauge("paceline:speculating", on, sum(map(bool, depths)) / max(1, len(depths)))
        words = "Expected speed of the next steps over that of plain decoding."
        yield self._gauge("paceline:expected_speedup", words, plan.outlook)
        kinds = {"greedy": plan.knowledge.greedy, "sampled": plan.knowledge.sampled}
        words = "Expected acceptance of a new request's first draft token."
        first = {kind: pool.rates[0] for kind, pool in kinds.items()}
        yield self._gauges("paceline:expected_acceptance", words, "sampling", first)

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        made = GaugeMetricFamily(name, words, labels=LABELS)
        made.add_metric(self.labels, float(value))
        return made

    def _gauges(self, name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
        made = GaugeMetricFamily(name, words, labels=(*LABELS, label))
        for key, value in values.items():
            made.add_metric((*self.labels, key), value)
        return made

    def _counter(self, name: str, words: str, value: float) -> Metric:
        made = CounterMetricFamily(name, words, labels=LABELS)
        made.add_metric(self.labels, value)
        return made

    def _counters(self, name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
        made = CounterMetricFamily(name, words, labels=(*LABELS, label))
        for key, value in values.items():
            made.add_metric((*self.labels, key), value)
        return made

    def _histogram(self, name: str, words: str, values: Distribution) -> Metric:
        made = HistogramMetricFamily(name, words, labels=LABELS)
        made.add_metric(self.labels, buckets=values.buckets, sum_value=values.total)
        return made


def add_metrics_route(app: FastAPI, served: AsyncEngine, counters: Counters, *, model: str) -> None:
    """Let ``app`` answer ``/metrics``, whose ``counters`` ``served`` tells."""
    metrics = Metrics(served, counters, model)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics")
    async def found() -> Response:  # pyright: ignore[reportUnusedFunction]
        try:
            text = await served.read(metrics.text)
        except EngineError as error:
            raise ApiError(503, f"{error}; start the server again") from error
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
