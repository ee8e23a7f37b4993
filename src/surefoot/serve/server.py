"""The HTTP server: its socket, timeouts and shutdown."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from surefoot.errors import InputError
from surefoot.serve.limits import Limits

BACKLOG = 1024  # connections waiting to be accepted
DRAIN = 0.5  # seconds at shutdown in which connections are still accepted, and again for a request on each
LINGER = 2.0  # seconds for a client to end its side of a connection
CLOSE = (b"connection", b"close")
GRACE = 5.0  # seconds beyond the longest allowed request, for requests in progress at shutdown
NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error": "the request is not valid HTTP"}'
)


class LingeringTransport:
    """A connection whose `close` ends our side, and the connection when the client has ended its side.

    A connection that is closed while data of the client is unread is reset, and the client may lose the
    response that it was sent. Until the client ends its side, at most for `LINGER` seconds, its data is
    read and discarded.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self.loop = transport, loop
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingering or self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send, unless it is closed."""
        if not self.lingering:
            self.transport.write(data)

    def close(self) -> None:
        """Send what is left, then end our side."""
        if self.is_closing():
            return
        self.lingering = True
        with suppress(OSError):  # the client has closed its side already
            self.transport.write_eof()
        self.transport.resume_reading()
        self.loop.call_later(LINGER, self.transport.close)


class HeadTimeoutProtocol(H11Protocol):
    """HTTP with a timeout for the head of a request, also where it arrives byte by byte.

    uvicorn's own timer stops at the first byte, and starts only after the first response. An accepted
    connection is never reset; at shutdown, a request that is on its way is still answered.
    """

    head_timer: asyncio.TimerHandle | None = None
    draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(LingeringTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Data has arrived; once the head is complete, the application has its own timeout."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._cancel_if_started()
        if self.draining and self._is_answering():
            self._answer_last()

    def shutdown(self) -> None:
        """Answer the request in progress, or one that arrives within `DRAIN` seconds, and close."""
        self.draining = True
        if self._is_answering():
            self._answer_last()
        else:
            self.loop.call_later(DRAIN, self._close_if_idle)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _answer_last(self) -> None:
        """The client learns from the response that it must not send another request."""
        self.cycle.keep_alive = False
        if not self.cycle.response_started and CLOSE not in self.cycle.default_headers:
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE]

    def _close_if_idle(self) -> None:
        if not self._is_answering():
            self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next head; the rest of a refused body must arrive in time as well."""
        self._start_timer()
        super().on_response_complete()
        self._cancel_if_started()  # it has already arrived

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._cancel_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Respond to invalid HTTP with a JSON error, unless a response has already started."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(NOT_HTTP)
        self.transport.close()

    def _start_timer(self) -> None:
        self._cancel_timer()
        self.head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _cancel_if_started(self) -> None:
        if self._is_answering():
            self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


class DrainingServer(uvicorn.Server):
    """A server that resets no accepted connection at shutdown, and ends without an error on signals."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on signals; uvicorn's own raises them again at the end, as if it had failed."""
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def main_loop(self) -> None:
        """Serve, from when signals are captured until one arrives."""
        self.announce()
        await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is on its way for `DRAIN` seconds, then stop listening and finish all requests.

        When a listening socket closes, the kernel resets a connection that begins in that moment and is not
        accepted yet. A load balancer prevents that: it stops sending connections before the server ends.
        """
        for each in list(self.server_state.connections):
            each.shutdown()
        await asyncio.sleep(DRAIN)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; with port 0 the system chooses a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            stack.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port}: {reason}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port, *_ = sock.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: ASGIApp, sock: socket.socket, limits: Limits, announce: Callable[[], None]) -> bool:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in progress.

    `announce` is called when requests are answered and signals are handled.
    Returns whether they were finished: a second Ctrl-C does not wait for them.
    """
    config = uvicorn.Config(
        app,
        http=HeadTimeoutProtocol,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.timeout,  # type: ignore[arg-type]
        timeout_graceful_shutdown=int(2 * limits.timeout + GRACE),
    )
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # invalid forms are reported to the client
    server = DrainingServer(config, announce)
    server.run(sockets=[sock])
    if not server.started:
        raise RuntimeError("the server did not start; its log says why")
    return not server.force_exit
