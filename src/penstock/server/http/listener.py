"""The HTTP listener of a server process: uvicorn in a thread of its own.

``start`` returns when the socket listens, so the address that it gives can be used at once. Runs in the server.
"""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from penstock.model.errors import PenstockError

_STOP_WAIT_S = 15.0
_CONNECTIONS_MAX = 512
"""Further ones are answered 503 at once."""


class HttpListener:
    """Serves an application from ``start`` to ``stop``."""

    def __init__(self, app: ASGIApp, host: str, port: int, certificate: Path | None = None, key: Path | None = None) -> None:
        """With a certificate, and its key unless both are in one file, over TLS."""
        self._host = host
        self._certificate = certificate
        self._key = key
        self._port = port
        self._socket: socket.socket | None = None
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            server_header=False,
            limit_concurrency=_CONNECTIONS_MAX,
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
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
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
