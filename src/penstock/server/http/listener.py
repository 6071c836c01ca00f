"""The HTTP listener of a server process: uvicorn in a thread of its own.

``start`` returns when the socket listens, so the address that it gives can be used at once. Invariant: nobody holds a connection by
sending or reading slowly, and no number of connections takes the files that the process needs for its work. Runs in the server.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.model.errors import PenstockError

_STOP_WAIT_S = 15.0
_FILES_WANTED = 1 << 16
CONNECTIONS_MAX = 512
"""Further ones are answered 503 at once; of those beyond an eighth more not even the call is read."""
WAIT_S_MAX = 20.0
"""How long a caller may take for the head of a call, for the rest of a body that nobody reads, and to take an answer."""


class HttpListener:
    """Serves an application from ``start`` to ``stop``."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        certificate: Path | None = None,
        key: Path | None = None,
        wait_s_max: float = WAIT_S_MAX,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """With a certificate, and its key unless both are in one file, over TLS."""
        self._host = host
        self._certificate = certificate
        self._key = key
        self._port = port
        self._socket: socket.socket | None = None
        config = uvicorn.Config(
            app,
            log_config=None,
            # Its warnings are about what strangers send, as often as they like.
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            server_header=False,
            # Whom a call says that it comes from anybody may write: by it strangers would have as many calls as they like.
            proxy_headers=False,
            limit_concurrency=connections_max,
            http=type(
                "BoundConnection", (TimedConnection,), {"wait_s_max": wait_s_max, "held_max": connections_max + connections_max // 8}
            ),
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    @property
    def url(self) -> str:
        """Return the base URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._certificate else 'http'}://{host}:{self._port}"

    def start(self) -> None:
        """Bind and serve; raise ``CONFIG_INVALID`` where the address cannot be had."""
        self._check_certificate()
        _have_files()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # By its protocol asyncio knows that small answers must not wait for an acknowledgement, which may take 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            # Connections wait in the backlog until uvicorn takes them, so there is no moment at which the address refuses.
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise PenstockError(
                "CONFIG_INVALID",
                f"http-port: cannot listen on {self._host}:{self._port}: {error.strerror}",
                "Choose a free port with --http-port.",
            ) from None
        self._port = listening.getsockname()[1]
        self._socket = listening
        self._thread.start()

    def stop(self) -> None:
        """Answer what is under way, then close."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)
        if self._socket is not None:
            self._socket.close()

    def _check_certificate(self) -> None:
        if self._certificate is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if not isinstance(error, ssl.SSLError) else error.reason
            raise PenstockError("CONFIG_INVALID", f"api.tls-certificate: {self._certificate}: {reason or 'cannot be used'}") from None

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _have_files() -> None:
    """Let the process open more files than strangers can make it hold: connections in the handshake of TLS, which end after a minute."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class TimedConnection(H11Protocol):  # type: ignore[misc]
    """One connection of uvicorn's, which ends where its caller makes the server wait. Called by the event loop alone."""

    wait_s_max: float
    held_max: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.held_max:
            transport.abort()
        else:
            self._time_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for timer in (self._sending, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        self._time_sending()

    def on_response_complete(self) -> None:
        """Wait for the next call."""
        super().on_response_complete()
        self._time_sending()

    def pause_writing(self) -> None:
        """Wait until the caller has taken some of its answer."""
        super().pause_writing()
        self._taking = self._taking or self._end_later()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def timeout_keep_alive_handler(self) -> None:
        """Close; what the caller has not taken by then is lost."""
        super().timeout_keep_alive_handler()
        self._taking = self._taking or self._end_later()

    def _time_sending(self) -> None:
        """Keep one deadline, which no byte moves, for as long as the server has nothing to do but wait for the caller."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.IDLE or (self.conn.their_state is h11.SEND_BODY and answered):
            self._sending = self._sending or self._end_later()
        elif self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _end_later(self) -> asyncio.TimerHandle:
        timer: asyncio.TimerHandle = self.loop.call_later(self.wait_s_max, self.transport.abort)
        return timer
