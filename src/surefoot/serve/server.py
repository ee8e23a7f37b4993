"""The HTTP server: its socket, timeouts and shutdown."""

import asyncio
import logging
import signal
import socket
from contextlib import ExitStack

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from surefoot.errors import InputError
from surefoot.serve.limits import Limits

BACKLOG = 1024  # connections waiting to be accepted
GRACE = 5.0  # seconds beyond the longest allowed request, for requests in progress at shutdown
NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error": "the request is not valid HTTP"}'
)


class HeadTimeoutProtocol(H11Protocol):
    """HTTP with a timeout for the head of a request, also where it arrives byte by byte.

    uvicorn's own timer stops at the first byte, and starts only after the first response.
    """

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Data has arrived; once the head is complete, the application has its own timeout."""
        super().data_received(data)
        self._cancel_if_started()

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
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


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


def run_server(app: ASGIApp, sock: socket.socket, limits: Limits) -> bool:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in progress.

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
        timeout_keep_alive=limits.timeout,  # type: ignore[arg-type]
        timeout_graceful_shutdown=int(2 * limits.timeout + GRACE),
    )
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # invalid forms are reported to the client
    # uvicorn raises the signal again at the end, which would end this process as if it had failed.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    server = uvicorn.Server(config)
    try:
        server.run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not server.force_exit
