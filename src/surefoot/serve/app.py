"""The four routes of a server, /, /predict, /health and /metrics, and what Prometheus reads of it."""

import asyncio
import hashlib
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from jinja2 import Template
from markupsafe import Markup
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.lab.images.decode import refusing_bombs
from surefoot.report.pages import TEMPLATES, template_named
from surefoot.runtime import usable_cores
from surefoot.serve.batching import LARGE, Batcher, PredictionError, Predictor
from surefoot.serve.hosts import Hosts
from surefoot.serve.limits import (
    BATCH,
    MEBIBYTE,
    Capacity,
    Limits,
    RefusedError,
    Watch,
    yield_to_others,
)
from surefoot.serve.uploads import Upload, read_rows_body, read_uploads
from surefoot.serve.window import ShiftWindow
from surefoot.text import visible

T = TypeVar("T")

PATHS = ("/", "/predict", "/health", "/metrics")
LISTED_CLASSES = 30  # on the page
DECODERS = 4  # decoding threads, at most; one more decodes large images, one at a time
CLIENT_GONE = 499  # the status, never read, for a client that disconnected before the response
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
Outcome = dict[str, Any] | RefusedError  # a prediction, or why there is none


@dataclass(frozen=True)
class Page:
    """The page for people, and the headers that restrict what the browser runs."""

    template: Template
    values: Mapping[str, Any]
    headers: Mapping[str, str]

    @staticmethod
    def of(predictor: Predictor, limits: Limits) -> "Page":
        """The page of a bundle; all text of the bundle is escaped."""
        bundle = predictor.bundle
        style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("look.css", "serve.css"))
        script = "" if bundle.encoding else (TEMPLATES / "serve.js").read_text(encoding="utf-8")
        values = {
            "bundle": bundle,
            "thresholds": predictor.table.thresholds,
            "verdict": predictor.verdict,
            "shown_classes": LISTED_CLASSES,
            "limits": limits,
            "mebibytes": f"{limits.max_image_bytes / MEBIBYTE:.3g}",
            "sentences": () if bundle.familiar is None else bundle.familiar.sentences(),
            "style": Markup(style),
            "script": Markup(script),
            "version": __version__,
        }
        policy = (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src blob: data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
        return Page(template_named("serve.html"), values, {"content-security-policy": "; ".join(policy)})

    def html(self, shift: Mapping[str, Any]) -> str:
        """The page, with the state of the checks for shift."""
        return self.template.render(shift=shift, **self.values)


def _hash(text: str) -> str:
    """The hash of an element's content, for the content security policy."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, capacity: Capacity, info: Mapping[str, str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter would have a second series
        self.registry = CollectorRegistry()
        shown = {name: visible(text) for name, text in info.items()}
        Info("surefoot", "What is served.", registry=self.registry).info(shown)
        waiting = Gauge("surefoot_waiting_images", "Images waiting for a prediction.", registry=self.registry)
        waiting.set_function(lambda: capacity.waiting)
        memory = Gauge("surefoot_held_bytes", "Bytes of uploads in memory.", registry=self.registry)
        memory.set_function(lambda: capacity.bytes)
        self.requests = self._counter("requests", "Requests, by path and status.", ["path", "code"])
        self.images = self._counter("images", "Images predicted or refused.", ["outcome"])
        self.verdicts = self._counter("verdicts", "Predictions, by how familiar the image is.", ["verdict"])
        self.decisions = self._counter("decisions", "Predictions, by decision.", ["decision"])
        self.predict_seconds = Histogram(
            "surefoot_predict_seconds",
            "Seconds from a request for /predict to its response.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_images = Histogram(
            "surefoot_batch_images",
            "Images per forward pass of the networks.",
            buckets=IMAGES,
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str]) -> Counter:
        return Counter(f"surefoot_{name}", documentation, labels, registry=self.registry)


class Service:
    """A bundle that is served: its handlers, metrics and threads."""

    def __init__(self, predictor: Predictor, limits: Limits, watch: Watch = Watch()) -> None:  # noqa: B008
        self.predictor, self.limits, self.capacity = predictor, limits, Capacity(limits)
        self.counts = Metrics(self.capacity, {"bundle": predictor.bundle.name, "version": __version__})
        self.window = ShiftWindow(predictor.bundle, watch)
        self.counts.registry.register(self.window)
        self.page = Page.of(predictor, limits)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the threads while the server runs; at its end they finish what waits."""
        with (
            refusing_bombs(),
            ThreadPoolExecutor(min(DECODERS, usable_cores()), "decoding") as self.decoders,
            ThreadPoolExecutor(1, "decoding-large", initializer=yield_to_others) as self.large_decoder,
        ):
            self.window.start()
            self.batcher: Batcher[Tensor, dict[str, Any]] = Batcher(
                self._predict, batch=BATCH, on_batch=self.counts.batch_images.observe
            )
            yield
            for close in (self.batcher.close, self.window.close):
                await asyncio.get_running_loop().run_in_executor(None, close)

    def _predict(self, inputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        predictions = self.predictor.outputs(inputs)
        documents = self.predictor.documents(predictions)
        self.window.add(predictions)
        return documents

    async def predict(self, request: Request) -> Response:
        """Label, confidence, entropy, novelty, verdict, decision and probabilities of every image or row."""
        loop = asyncio.get_running_loop()
        keys: list[dict[str, Any]]
        with self.capacity.request() as memory:
            if self.predictor.bundle.encoding is None:
                uploads = await self._received(read_uploads(request, self.limits, memory))
                keys = [{"name": upload.name} for upload in uploads]
                with self.capacity.queued(len(uploads)):
                    outcomes = await self._answered([self._outcome(upload) for upload in uploads])
            else:
                kind, data = await self._received(read_rows_body(request, self.limits, memory))
                most = self.limits.max_images
                inputs = await loop.run_in_executor(self.decoders, self.predictor.rows, kind, data, most)
                keys = [{"row": row} for row in range(len(inputs))]
                with self.capacity.queued(len(inputs)):
                    outcomes = await self._answered([self._predicted(each) for each in inputs])
        self._count(outcomes)
        about = {"unfamiliar_verdict": self.predictor.verdict.document()}
        return await loop.run_in_executor(None, predict_response, keys, outcomes, about)

    async def _received(self, reading: Awaitable[T]) -> T:
        """What is read from a request, if it arrives in time."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await reading
        except TimeoutError:
            late = f"the request did not arrive within {self.limits.timeout:g} s"
            raise RefusedError(408, late) from None

    async def _answered(self, outcomes: Sequence[Awaitable[Outcome]]) -> list[Outcome]:
        """The outcomes, if they are there in time."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await asyncio.gather(*outcomes)
        except TimeoutError:
            late = f"there was no prediction within {self.limits.timeout:g} s"
            raise RefusedError(504, late) from None

    async def _outcome(self, upload: Upload) -> Outcome:
        if upload.refused is not None:
            return upload.refused
        loop, preprocess, most = asyncio.get_running_loop(), self.predictor.preprocess, self.limits.max_pixels
        image = await loop.run_in_executor(self.decoders, preprocess, upload.data, min(LARGE, most))
        if isinstance(image, RefusedError) and image.status == 413 and most > LARGE:
            image = await loop.run_in_executor(self.large_decoder, preprocess, upload.data, most)
        return image if isinstance(image, RefusedError) else await self._predicted(image)

    async def _predicted(self, sample: Tensor) -> Outcome:
        try:
            return await asyncio.wrap_future(self.batcher.submit(sample))
        except InputError as error:
            return RefusedError(422, str(error))
        except PredictionError:
            return RefusedError(500, "the prediction failed; see the server's log")

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, RefusedError):
                self.counts.images.labels("refused").inc()
                continue
            self.counts.images.labels("predicted").inc()
            for name, counter in (("verdict", self.counts.verdicts), ("decision", self.counts.decisions)):
                if outcome[name] is not None:
                    counter.labels(outcome[name]).inc()

    async def health(self) -> Response:
        """What is served, and whether it can predict."""
        bundle, ready = self.predictor.bundle, self.batcher.alive
        document = {
            "ready": ready,
            "bundle": bundle.name,
            "surefoot": __version__,
            "classes": len(bundle.class_names),
            "device": str(self.predictor.device),
            "waiting": self.capacity.waiting,
            "shift": self.window.document(),
            "unfamiliar_verdict": self.predictor.verdict.document(),
        }
        return json_response(200 if ready else 503, document)

    async def metrics(self) -> Response:
        """The metrics for Prometheus."""
        return Response(self.counts.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show(self) -> Response:
        """The page for people."""
        html = self.page.html(self.window.document())
        return Response(html, headers=dict(self.page.headers), media_type="text/html")


def build_app(predictor: Predictor, limits: Limits, hosts: Hosts, watch: Watch = Watch()) -> ASGIApp:  # noqa: B008
    """The ASGI application."""
    service = Service(predictor, limits, watch)
    # No redirects to a path without a slash at its end: they would contain the host that the client named.
    app = FastAPI(
        lifespan=service.running, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.add_api_route("/predict", service.predict, methods=["POST"])
    for path, handler in (("/", service.show), ("/health", service.health), ("/metrics", service.metrics)):
        app.add_api_route(path, handler, methods=["GET", "HEAD"])

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return json_response(error.status, {"error": error.sentence})

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        sentence = f"not found; have: {', '.join(PATHS)}"
        if error.status_code == 405:
            sentence = f"{request.method} is not allowed here; /predict takes POST, all others GET"
        return json_response(error.status_code, {"error": sentence})

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return json_response(CLIENT_GONE, {"error": "the client has disconnected"})

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:
        return json_response(500, {"error": "the server failed; see its log"})

    return CountingApp(app, service.counts, hosts)


def predict_response(
    keys: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], about: Mapping[str, Any]
) -> Response:
    """The prediction or error of each image or row; where there are only errors, the request has failed.

    `keys` say which it is; `about` is for all of them.
    """
    refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    if len(outcomes) == len(refused) == 1:
        return json_response(refused[0].status, {"error": refused[0].sentence})
    documents = [
        {
            **key,
            **(
                {"error": outcome.sentence, "status": outcome.status}
                if isinstance(outcome, RefusedError)
                else outcome
            ),
        }
        for key, outcome in zip(keys, outcomes, strict=True)
    ]
    if len(refused) < len(outcomes):
        return json_response(200, {**about, "predictions": documents})
    first = refused[0]
    status = first.status if all(each.status == first.status for each in refused) else 400
    sentence = f"none of {len(refused)} images could be predicted; the first: {first.sentence}"
    return json_response(status, {"error": sentence, "predictions": documents})


def json_response(status: int, document: Any) -> Response:
    """A JSON response, in ASCII: no name in it controls a terminal."""
    text = json.dumps(document, allow_nan=False)
    headers = {"retry-after": "1"} if status == 503 else {}
    return Response(text.encode(), status, headers=headers, media_type="application/json")


class CountingApp:
    """An application that refuses other hosts, counts and times its responses, adds the security headers."""

    def __init__(self, app: ASGIApp, counts: Metrics, hosts: Hosts) -> None:
        self.app, self.counts, self.hosts = app, counts, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        start, started = time.perf_counter(), False

        async def counting(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self.counts.requests.labels(path, str(message["status"])).inc()
                if path == "/predict":
                    self.counts.predict_seconds.observe(time.perf_counter() - start)
                given = {name for name, _ in message["headers"]}
                message["headers"] += [pair for pair in SECURITY_HEADERS if pair[0] not in given]
            await send(message)

        refused = self.hosts.refusal(scope["method"], scope["headers"])
        if refused is not None:
            await json_response(refused.status, {"error": refused.sentence})(scope, receive, counting)
            return
        try:
            await self.app(scope, receive, counting)
        except asyncio.CancelledError:  # the server stops without waiting
            if not started:
                await json_response(503, {"error": "the server was stopped"})(scope, receive, counting)
