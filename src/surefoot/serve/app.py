"""The four routes of a server: /, /predict, /health and /metrics."""

import asyncio
import hashlib
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from surefoot import __version__
from surefoot.deploy.bundle import Bundle
from surefoot.deploy.decision import Rule
from surefoot.images.decode import refusing_bombs
from surefoot.report.style import TEMPLATES, template_named
from surefoot.runtime import usable_cores
from surefoot.serve.batching import Answerer, Batcher, UnansweredError
from surefoot.serve.limits import AT_ONCE, MEBIBYTE, Capacity, Limits, RefusedError
from surefoot.serve.metrics import CONTENT_TYPE, Meters
from surefoot.serve.uploads import Upload, read_uploads

SHOWN_CLASSES = 30  # names that the page lists


@dataclass(frozen=True)
class Page:
    """What is sent, and the headers that hold the browser to it."""

    html: str
    headers: Mapping[str, str]

    @staticmethod
    def of(bundle: Bundle, thresholds: Rule | None, limits: Limits) -> "Page":
        """Of a bundle; what it says of itself is escaped."""
        style = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("look.css", "serve.css"))
        script = (TEMPLATES / "serve.js").read_text(encoding="utf-8")
        html = template_named("serve.html").render(
            bundle=bundle,
            thresholds=thresholds,
            shown_classes=SHOWN_CLASSES,
            limits=limits,
            mebibytes=f"{limits.max_image_bytes / MEBIBYTE:.3g}",
            sentences=() if bundle.familiar is None else bundle.familiar.sentences(),
            style=Markup(style),
            script=Markup(script),
            version=__version__,
        )
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
        return Page(html, {"content-security-policy": "; ".join(policy)})


def _hash(text: str) -> str:
    """Of what stands in an element: all that a browser will run or apply."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PATHS = ("/", "/predict", "/health", "/metrics")
DECODERS = 4  # threads that decode, at most
GONE = 499  # of a client that left before it was answered; it never reads this
SAFELY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
Outcome = dict[str, Any] | RefusedError


class Service:
    """A bundle that is served: what waits, what was done, and the threads that do it."""

    def __init__(self, answerer: Answerer, limits: Limits) -> None:
        self.answerer, self.limits = answerer, limits
        self.room, self.meters = Capacity(limits), Meters()
        self.page = Page.of(answerer.bundle, answerer.table.thresholds, limits)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """The threads, from the start of the server to its end; what they have begun they finish."""
        loop = asyncio.get_running_loop()
        with refusing_bombs(), ThreadPoolExecutor(min(DECODERS, usable_cores()), "decoding") as self.decoders:
            self.batcher: Batcher[Tensor, dict[str, Any]] = Batcher(
                self.answerer.answers,
                at_once=AT_ONCE,
                on_event=lambda size: loop.call_soon_threadsafe(self.meters.batches.add, size),
            )
            yield
            await loop.run_in_executor(None, self.batcher.close)

    async def predict(self, request: Request) -> Response:
        """Label, confidence, entropy, novelty, verdict, decision and probabilities of every image."""
        with self.room.guest() as guest:
            try:
                async with asyncio.timeout(self.limits.timeout):
                    uploads = await read_uploads(request, self.limits, guest)
            except TimeoutError:
                late = f"the request did not arrive within {self.limits.timeout:g} s"
                raise RefusedError(408, late) from None
            with self.room.admitted(len(uploads)):
                outcomes = await self._outcomes(uploads)
        self._count(outcomes)
        return await asyncio.get_running_loop().run_in_executor(None, rendered, uploads, outcomes)

    async def _outcomes(self, uploads: Sequence[Upload]) -> list[Outcome]:
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await asyncio.gather(*(self._outcome(upload) for upload in uploads))
        except TimeoutError:
            raise RefusedError(504, f"there was no answer within {self.limits.timeout:g} s") from None

    async def _outcome(self, upload: Upload) -> Outcome:
        if upload.refused is not None:
            return upload.refused
        loop, most = asyncio.get_running_loop(), self.limits.max_pixels
        view = await loop.run_in_executor(self.decoders, self.answerer.view, upload.data, most)
        if isinstance(view, RefusedError):
            return view
        try:
            return await asyncio.wrap_future(self.batcher.ask(view))
        except UnansweredError:
            return RefusedError(500, "the prediction failed; the server's log says why")

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            predicted = not isinstance(outcome, RefusedError)
            self.meters.images[("outcome", "predicted" if predicted else "refused"),] += 1
            if not isinstance(outcome, RefusedError):
                for name, counter in (("verdict", self.meters.verdicts), ("decision", self.meters.decisions)):
                    if outcome[name] is not None:
                        counter[(name, outcome[name]),] += 1

    async def health(self) -> Response:
        """What is served, and whether it answers."""
        bundle, ready = self.answerer.bundle, self.batcher.alive
        said = {
            "ready": ready,
            "bundle": bundle.name,
            "surefoot": __version__,
            "classes": len(bundle.class_names),
            "device": str(self.answerer.device),
            "waiting": self.room.waiting,
        }
        return json_response(200 if ready else 503, said)

    async def metrics(self) -> Response:
        """For Prometheus."""
        gauges = {
            "waiting_images": ("Images that wait for their answer.", self.room.waiting),
            "held_bytes": ("Bytes of uploads in memory.", self.room.held),
        }
        info = {"bundle": self.answerer.bundle.name, "version": __version__}
        return Response(self.meters.text(info, gauges), media_type=CONTENT_TYPE)

    async def show(self) -> Response:
        """The page for people."""
        return Response(self.page.html, headers=dict(self.page.headers), media_type="text/html")


def build_app(answerer: Answerer, limits: Limits) -> ASGIApp:
    """All of it, as one application."""
    service = Service(answerer, limits)
    app = FastAPI(lifespan=service.running, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/predict", service.predict, methods=["POST"])
    for path, answer in (("/", service.show), ("/health", service.health), ("/metrics", service.metrics)):
        app.add_api_route(path, answer, methods=["GET", "HEAD"])
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _not_there)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _failed)
    return Counted(app, service.meters)


def rendered(uploads: Sequence[Upload], outcomes: Sequence[Outcome]) -> Response:
    """Every image's answer or error; where there are only errors, the request has failed."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
    if len(outcomes) == len(refused) == 1:
        return json_response(refused[0].status, {"error": refused[0].sentence})
    said = [
        {
            "name": upload.name,
            **(
                {"error": outcome.sentence, "status": outcome.status}
                if isinstance(outcome, RefusedError)
                else outcome
            ),
        }
        for upload, outcome in zip(uploads, outcomes, strict=True)
    ]
    if len(refused) < len(outcomes):
        return json_response(200, {"predictions": said})
    first = refused[0]
    status = first.status if all(each.status == first.status for each in refused) else 400
    sentence = f"none of {len(refused)} images could be predicted; of the first: {first.sentence}"
    return json_response(status, {"error": sentence, "predictions": said})


def json_response(status: int, document: Any) -> Response:
    """Of plain values."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    headers = {"retry-after": "1"} if status == 503 else {}
    return Response(text.encode(errors="replace"), status, headers=headers, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return json_response(error.status, {"error": error.sentence})


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"there is nothing here; have: {', '.join(PATHS)}"
    if error.status_code == 405:
        sentence = f"not by {request.method}; /predict is for POST, all else for GET"
    return json_response(error.status_code, {"error": sentence})


async def _gone(_: Request, __: Exception) -> Response:
    return json_response(GONE, {"error": "the client has gone"})


async def _failed(_: Request, __: Exception) -> Response:
    return json_response(500, {"error": "the server failed; its log says why"})


class Counted:
    """An application whose answers are counted and timed, and carry the headers that all should."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app, self.meters = app, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        start, started = time.perf_counter(), False

        async def counting(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self.meters.requests[("path", path), ("code", str(message["status"]))] += 1
                if path == "/predict":
                    self.meters.seconds.add(time.perf_counter() - start)
                given = {name for name, _ in message["headers"]}
                message["headers"] += [pair for pair in SAFELY if pair[0] not in given]
            await send(message)

        try:
            await self.app(scope, receive, counting)
        except asyncio.CancelledError:  # the server ends, and does not wait any more
            if not started:
                await json_response(503, {"error": "the server was stopped"})(scope, receive, counting)
