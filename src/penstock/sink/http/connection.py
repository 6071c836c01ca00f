"""One kept-alive connection to the address of an HTTP target, and what it answered.

Every address that the host's name resolves to is looked at when it is connected to, so a name that leads to where a machine's credentials
are given out is refused however it was written; redirects are not followed, certificates are verified, and proxies of the environment are
not asked. Invariants: an exchange ends within its time, however slowly the other side sends; of an answer only so many bytes are read;
what is raised or returned names neither parameters nor headers. Not thread safe. Runs on executors and in the server.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpcore
import msgspec

from penstock import __version__
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.settings.masking import MASK, mask_text
from penstock.sink.http.messages import Message
from penstock.sink.http.settings import Address, HttpSettings
from penstock.target.network import CheckedNetwork
from penstock.target.signatures import ID_HEADER, SECRET_PREFIX, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature

_ANSWER_BYTES_MAX = 64 << 10
_SHOWN_CHARS_MAX = 200
_LOOKED_AT_MAX = 4 << 10
_CONNECT_S_MAX = 10.0
_CERTIFICATE_HINT = (
    "Certificates are verified. Name the authority of one that is self-signed or of your own with ca, in a connection of the server;"
    " one that is over or of another host must be renewed there."
)


class Answer(msgspec.Struct, frozen=True):
    """What the other side said."""

    status: int
    text: str = ""
    """The beginning of the body, masked."""
    retry_after_s: float | None = None


class Connection:
    """Posts messages, one at a time."""

    def __init__(self, address: Address, settings: HttpSettings, clock: Clock) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._network = CheckedNetwork(address.shown, clock)
        own = (settings.token, settings.secret, settings.secret.removeprefix(SECRET_PREFIX))
        self._secrets = sorted({*address.secrets, *(one for one in own if one.strip())}, key=len, reverse=True)
        context = None
        if address.url.startswith("https"):
            try:
                context = ssl.create_default_context(cafile=settings.ca or None)
            except (OSError, ssl.SSLError) as error:
                raise PenstockError("SINK_UNWRITABLE", f"{address.shown}: the file of ca cannot be read ({type(error).__name__})") from None
        self._pool = httpcore.ConnectionPool(context, max_connections=1, network_backend=self._network)

    def post(self, message: Message, *, redelivery: bool = False) -> Answer:
        """Post a message; raise ``SINK_UNAVAILABLE`` where no whole answer comes, which does not say that it was not taken."""
        headers = {
            **self._headers(),
            "Content-Type": message.content_type,
            "Idempotency-Key": message.id,
            ID_HEADER: message.id,
            "penstock-lane": message.lane,
            "penstock-sequence": message.sequence,
            **message.headers,
        }
        if redelivery:
            headers["penstock-redelivery"] = "1"
        if secret := self._settings.secret_bytes:
            now_s = self._clock.now_ms() // 1000
            headers[TIMESTAMP_HEADER] = str(now_s)
            headers[SIGNATURE_HEADER] = signature(secret, message.id, now_s, message.body)
        return self._exchange("POST", headers, message.body)

    def look(self) -> Answer:
        """Ask for nothing but an answer."""
        return self._exchange("HEAD", self._headers(), b"")

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Host": self._address.url.split("/")[2], "User-Agent": f"penstock/{__version__}", "Accept": "*/*"}
        if self._settings.token:
            headers["Authorization"] = f"Bearer {self._settings.token}"
        elif self._address.credentials:
            headers["Authorization"] = self._address.credentials
        return headers

    def _exchange(self, method: str, headers: Mapping[str, str], body: bytes) -> Answer:
        time_s = self._settings.request_timeout_ms / 1000
        self._network.until_s = self._clock.monotonic_s() + time_s
        times = {"connect": min(time_s, _CONNECT_S_MAX), "read": time_s, "write": time_s, "pool": time_s}
        pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
        pairs.append((b"Content-Length", b"%d" % len(body)))
        try:
            with self._pool.stream(method, self._address.url, headers=pairs, content=body, extensions={"timeout": times}) as response:
                return self._read(response)
        except PenstockError:
            raise
        except (httpcore.TimeoutException, TimeoutError) as error:
            detail = f"{self._address.shown}: no answer within {time_s:g} s"
            raise PenstockError("SINK_UNAVAILABLE", detail) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            detail = self._shown(f"{error}")
            hint = _CERTIFICATE_HINT if "CERTIFICATE_VERIFY_FAILED" in detail else None
            raise PenstockError("SINK_UNAVAILABLE", f"{self._address.shown}: {type(error).__name__}: {detail}", hint) from None

    def _read(self, response: httpcore.Response) -> Answer:
        content = bytearray()
        for piece in response.iter_stream():
            content += piece
            if len(content) > _ANSWER_BYTES_MAX:
                # The rest is not worth its time: the stream is closed, and the next message has a new connection.
                break
        named = {key.lower(): value for key, value in response.headers}
        shown = self._shown(bytes(content[:_LOOKED_AT_MAX]).decode("utf-8", "replace"))
        return Answer(response.status, shown, self._retry_after_s(named.get(b"retry-after", b"").decode("latin-1")))

    def _shown(self, text: str) -> str:
        """Return the beginning of a text in one line, without what this target keeps secret: some answer with what they were asked."""
        text = "".join(char if char.isprintable() else " " for char in text)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        # A secret that the end cuts in two would be shown in part: texts are much longer here than what is shown of them.
        return mask_text(" ".join(text.split()))[:_SHOWN_CHARS_MAX]

    def _retry_after_s(self, value: str) -> float | None:
        """Return the seconds that a Retry-After header asks for: a number of them, or a date."""
        value = value.strip()
        if value.isdecimal():
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - self._clock.now_ms() / 1000)
        except (ValueError, OverflowError):
            return None
