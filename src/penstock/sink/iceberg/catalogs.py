"""The catalog of an Iceberg warehouse: a database, or a service that speaks Iceberg's REST protocol; and what their refusals mean.

Invariants: every question to a service has a bound of time; no text of an error has what a service answered, nor how it was entered. What a
commit without an answer did, the next try finds in the table. Runs beside the driver, and in tasks that read a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    OAuthError,
    RESTError,
    UnauthorizedError,
    ValidationException,
)
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from penstock.files.buckets import cause_of
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri
from penstock.sink.lake.format import LakeConflict

CATALOG_NAME = "penstock"
REST_PARAMETERS = frozenset({"warehouse", "prefix", "token", "credential", "scope", "audience", "resource", "oauth2-server-uri"})
"""What the address of a REST service may say behind its question mark: where the warehouse is in it, and how it is entered."""
_OPEN_TRIES_MAX = 4
_ANSWER_S_MAX = 60.0
_S3_NAMES = {
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
    "access_key": "s3.access-key-id",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "default_region": "s3.region",
}


def open_catalog(uri: str, catalog: str, root: str) -> Catalog:
    """Return the catalog of a warehouse: REST where it is a web address, a database otherwise; by default a file beside the tables."""
    parts = urlsplit(uri)
    given = {key.replace("-", "_"): value for key, value in parse_qsl(parts.query)}
    told: dict[str, Any] = {"warehouse": root, **{_S3_NAMES[key]: value for key, value in given.items() if key in _S3_NAMES}}
    if catalog.startswith(("http://", "https://")):
        with commits():
            return _rest_catalog(catalog, told)
    if not catalog:
        folder = Path(unquote(parts.path)) / ".penstock"
        folder.mkdir(parents=True, exist_ok=True)
        catalog = f"sqlite:///{folder}/catalog.db"
    with commits():
        opened = _sql_catalog(catalog, told)
        opened.engine.dispose()
        # A maintainer lives for one window: it leaves no connection behind.
        opened.engine = create_engine(catalog, poolclass=NullPool)
    return opened


@contextmanager
def commits() -> Iterator[None]:
    """Tell what pyiceberg and the catalog refuse in the words of the lake."""
    try:
        yield
    except (CommitFailedException, ValidationException, IntegrityError):
        raise LakeConflict from None
    except (UnauthorizedError, ForbiddenError, OAuthError, BadRequestError) as error:
        raise PenstockError("SINK_UNWRITABLE", f"Iceberg's catalog: {_refusal(error)}") from None
    except (RESTError, ValidationError) as error:
        # Whatever became of a commit: the next try looks at the table first.
        raise PenstockError("SINK_UNAVAILABLE", f"Iceberg's catalog: {_refusal(error)}") from None
    except (SQLAlchemyError, OSError) as error:
        raise PenstockError("SINK_UNAVAILABLE", f"Iceberg's catalog: {cause_of(error)}") from None


def _refusal(error: Exception) -> str:
    """Return what kind of refusal it is: the text beside it is the service's own, which may repeat what it was asked with."""
    return f"it refuses with {type(error).__name__}"


class _BoundCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog whose questions end."""

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundAdapter(pool_connections=1, pool_maxsize=1))
        return session


class _BoundAdapter(HTTPAdapter):
    """Waits for an answer no longer than a bound."""

    def send(self, request: PreparedRequest, *args: Any, **given: Any) -> Response:
        """Send a request."""
        given["timeout"] = given.get("timeout") or _ANSWER_S_MAX
        return super().send(request, *args, **given)


def _rest_catalog(address: str, told: Mapping[str, Any]) -> RestCatalog:
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - REST_PARAMETERS)
    if unknown or parts.username is not None:
        what = f"{', '.join(unknown)} of {mask_uri(address)}" if unknown else f"{mask_uri(address)} has a user"
        raise PenstockError("CONFIG_INVALID", f"catalog: {what}; a REST catalog takes {', '.join(sorted(REST_PARAMETERS))}")
    if "credential" in given and "oauth2-server-uri" not in given:
        # What pyiceberg would take, and complain about: the protocol's own place for tokens, which is on its way out.
        given["oauth2-server-uri"] = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/v1/oauth/tokens", "", ""))
    bare = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    return _BoundCatalog(CATALOG_NAME, **{**told, **given, "uri": bare})


def _sql_catalog(uri: str, told: Mapping[str, Any]) -> SqlCatalog:
    """Open a catalog, again where another one is making the catalog's own tables, one after the other."""
    for _ in range(_OPEN_TRIES_MAX):
        with suppress(SQLAlchemyError):
            return SqlCatalog(CATALOG_NAME, uri=uri, **told)
    return SqlCatalog(CATALOG_NAME, uri=uri, **told)
