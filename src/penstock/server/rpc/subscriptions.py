"""``SubscribeCDC``: a table, a name and a sink become a feed, by the same creation as over HTTP.

Invariants: whoever calls is asked for its token and role before anything of the message is read; a message has a bound and a time; the
target is checked by the same list as one that comes over HTTP, because the same creation checks it; one name stands for one feed, so a
second subscription of a name is refused. Errors have the codes, messages and hints of the HTTP API. Runs in the server, in threads of gRPC.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError

from penstock.config.api_settings import ApiSettings
from penstock.meta.api_tokens import Role
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord, SubscribeRecord
from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.ports import Liveness
from penstock.server.http.answers import error_body, status_of
from penstock.server.http.bodies import checked_tree
from penstock.server.http.call_rates import CallRates
from penstock.server.http.callers import Caller, Callers
from penstock.server.http.guard import STRANGER_CALLS_BURST, STRANGER_CALLS_PER_SECOND
from penstock.settings.masking import mask_text
from penstock.source.proto import subscribe_pb2 as pb

SERVICE = "penstock.cdc.CdcServer"
ERROR_KEY = "penstock-error-bin"
_MESSAGE_S_MAX = 30.0
_WILD = frozenset("*?[]!")
_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    424: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""By the HTTP status of an error."""

log = logging.getLogger(__name__)


class Subscriptions:
    """Answers ``SubscribeCDC``. Thread safe."""

    def __init__(
        self, creator: FeedCreator, meta: MetaDatabase, supervisor: Liveness, callers: Callers, settings: ApiSettings, clock: Clock
    ) -> None:
        self._creator = creator
        self._meta = meta
        self._supervisor = supervisor
        self._callers = callers
        self._lock = threading.Lock()
        self._rates = CallRates(settings.requests_per_second, 2 * settings.requests_per_second, clock)
        self._stranger_rates = CallRates(STRANGER_CALLS_PER_SECOND, STRANGER_CALLS_BURST, clock)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what gRPC calls. The message is taken from a stream, so that it waits until the caller is known."""
        subscribe = grpc.stream_unary_rpc_method_handler(
            self._subscribe,
            request_deserializer=_request,
            response_serializer=pb.SubscribeCDCResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"SubscribeCDC": subscribe})

    def _subscribe(self, messages: Iterator[pb.SubscribeCDCRequest | bytes], context: grpc.ServicerContext) -> pb.SubscribeCDCResponse:
        try:
            caller = self._admit(context)
            request = _only(messages, context)
            log.info("subscribe call", extra={"caller": caller.name})
            feed = self._creator.create(checked_tree(feed_tree(request)), Actor(caller.name, mask_text(request.header.reason)))
            self._supervisor.wake()
            return pb.SubscribeCDCResponse(subscriber=_subscriber(feed, self._meta.feed_tables(feed.name)))
        except PenstockError as error:
            _end(context, error)
        except grpc.RpcError:
            raise
        except Exception as error:
            if not context.is_active():
                raise
            log.exception("subscribe call failed")
            # Its text may repeat what the call held.
            _end(context, InvariantError(f"the call failed with {type(error).__name__}"))

    def _admit(self, context: grpc.ServicerContext) -> Caller:
        """Return who calls; raise where they may not."""
        given = [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = self._find(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        who = context.peer().rpartition(":")[0] if caller is None else caller.key
        with self._lock:
            allowed = (self._stranger_rates if caller is None else self._rates).take(who)
        if not allowed:
            raise PenstockError("API_BUSY", f"{who if caller is None else caller.name} calls too often")
        if caller is None:
            missing = "the token is unknown, expired or revoked" if given else "the call carries no token (authorization: Bearer ...)"
            raise PenstockError("API_TOKEN_REQUIRED", f"SubscribeCDC: {missing}")
        if not caller.role.allows(Role.OPERATE):
            raise PenstockError("API_FORBIDDEN", f"SubscribeCDC needs the role {Role.OPERATE}; {caller.name} has {caller.role.value}")
        return caller

    def _find(self, token: str) -> Caller | None:
        caller, certain = self._callers.find(token)
        if not certain:
            self._callers.refresh()
            caller, _ = self._callers.find(token)
        return caller


def feed_tree(request: pb.SubscribeCDCRequest) -> dict[str, Any]:
    """Return the configuration of a feed that a request stands for, as one would send it over HTTP."""
    for name, text in {"db_name": request.db_name, "table_name": request.table_name}.items():
        if not text or _WILD & set(text):
            raise PenstockError("CONFIG_INVALID", f"{name}: must name one, without wildcards", "Use the HTTP API for patterns.")
    sink = _sink(request.sink.type, dict(request.sink.config))
    tree: dict[str, Any] = {"name": request.subscriber_name, "tables": [f"{request.db_name}.{request.table_name}"], "sink": sink}
    return tree | ({"source": request.header.source} if request.header.source else {})


def _sink(kind: str, config: Mapping[str, str]) -> dict[str, Any]:
    uri = config.get("uri", "")
    scheme = urlsplit(uri).scheme
    if not uri:
        raise PenstockError("CONFIG_INVALID", "sink.config.uri: is required", "Give the target, as in uri = s3://bucket/prefix.")
    if kind != scheme:
        raise PenstockError("CONFIG_INVALID", f"sink.type: {kind!r} is not {scheme!r}, the kind of its uri")
    tree: dict[str, Any] = {"uri": uri}
    for key, value in config.items():
        *above, last = key.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise PenstockError("CONFIG_INVALID", f"sink.config.{key}: is both an option and the name of others")
        if last in place and key != "uri":
            raise PenstockError("CONFIG_INVALID", f"sink.config.{key}: is both an option and the name of others")
        place[last] = value
    return tree


def _subscriber(feed: FeedRecord, tables: list[SubscribeRecord]) -> pb.CDCSubscriber:
    """Return a subscription as the table ``subscribe`` has it."""
    row = tables[0]
    return pb.CDCSubscriber(
        subscriber_name=row.subscribe_name,
        db_name=row.db_name,
        table_name=row.table_name,
        table_id=row.table_id,
        master_addrs=row.master_addrs,
        sink=row.sink,
        cancel=bool(row.cancel),
        owner=row.owner,
        uuid=feed.uuid,
    )


def _request(content: bytes) -> pb.SubscribeCDCRequest | bytes:
    """Return a message, as it came where it cannot be read: gRPC would call that an error of the server."""
    try:
        return pb.SubscribeCDCRequest.FromString(content)
    except DecodeError:
        return content


def _only(messages: Iterator[pb.SubscribeCDCRequest | bytes], context: grpc.ServicerContext) -> pb.SubscribeCDCRequest:
    """Return the message of a call; one that does not come in time ends it."""
    late = threading.Timer(_MESSAGE_S_MAX, context.cancel)
    late.daemon = True
    late.start()
    try:
        found = list(itertools.islice(messages, 1))
    finally:
        late.cancel()
    if not found:
        raise PenstockError("API_BODY_REFUSED", "the call has no message")
    if isinstance(found[0], bytes):
        raise PenstockError("CONFIG_INVALID", "the message is no SubscribeCDCRequest that can be read")
    return found[0]


def _end(context: grpc.ServicerContext, error: PenstockError) -> NoReturn:
    body = error_body(error)
    context.set_trailing_metadata(((ERROR_KEY, json.dumps(body).encode()),))
    context.abort(_STATUS.get(status_of(error), grpc.StatusCode.INTERNAL), f"[{error.code}] {body['message']}")
    raise error
