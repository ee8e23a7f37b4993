"""A server from its socket to its end."""

import asyncio
import logging
import signal
import socket
from contextlib import ExitStack
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from surefoot.errors import InputError
from surefoot.serve.limits import Limits

BACKLOG = 1024  # connections that wait to be taken
GRACE = 5.0  # seconds beyond the longest that a request may take, for those under way when it ends
NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error": "this is not HTTP as it should be"}'
)


class HeadTimeoutProtocol(H11Protocol):
    """HTTP in which the head of a request, too, must have come within a time, however it trickles.

    uvicorn's own timer stops at the first byte, and starts only after a first answer.
    """

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Something has come: once it is a whole head, the application watches the time."""
        super().data_received(data)
        self._forget_if_begun()

    def on_response_complete(self) -> None:
        """The next head may come; what is left of a body that was refused must come in time as well."""
        self._expect_head()
        super().on_response_complete()
        self._forget_if_begun()  # it had come already

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What is not HTTP: an error like all others, unless an answer is under way already."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(NOT_HTTP)
        self.transport.close()

    def _expect_head(self) -> None:
        self._forget()
        self.head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _forget_if_begun(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()

    def _forget(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections; at port 0 the system chooses one."""
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


def address_of(sock: socket.socket) -> str:
    """For people and browsers."""
    host, port, *_ = sock.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, sock: socket.socket, limits: Limits) -> bool:
    """Answer until SIGTERM or Ctrl-C; what is under way then is answered first.

    Returns whether it was: another Ctrl-C does not wait for it.
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
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a broken form is the client's to know of
    # uvicorn raises the signal again once it is done; that would end us by the signal, as if in a failure.
    before = {number: signal.signal(number, _already_heard) for number in (signal.SIGINT, signal.SIGTERM)}
    server = uvicorn.Server(config)
    try:
        server.run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not server.force_exit


def _already_heard(*_: Any) -> None:
    """Nothing is left to do."""
