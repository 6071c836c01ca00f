"""Buckets of object stores: how they are opened, and what their errors say, for the event store's objects and for targets alike.

Options have obstore's names (``access_key_id``) and may be written with dashes, for S3 also as in the layout's origin. What is not given
comes from the environment. Invariant: a cause holds no credential, and nothing that a server answered. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping
from typing import Any

from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "azure", "azblob"})
REQUEST_S_MAX = 300.0
"""A whole file must fit in one request's time."""
_CONNECT_S_MAX = 10.0
_ANSWERED = re.compile(r"(non-2xx status code: \d{3}[A-Za-z '-]*|Got invalid [^:]*):.*")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_S3_NAMES = {"access_key": "access_key_id"}


def open_bucket(
    scheme: str,
    bucket: str,
    prefix: str,
    options: Mapping[str, str],
    retries_max: int | None = None,
    request_s_max: float = REQUEST_S_MAX,
) -> ObjectStore:
    """Return the store of a bucket or container below a prefix; obstore tries again so often, as it likes where that is None.

    A request that is not answered within its time has failed, and so much later nothing is tried again.
    """
    config: dict[str, Any] = {k.replace("-", "_"): v for k, v in options.items()}
    retry: Any = None if retries_max is None else {"max_retries": retries_max, "retry_timeout": dt.timedelta(seconds=request_s_max)}
    common: dict[str, Any] = {"prefix": prefix or None, "retry_config": retry}
    if scheme in {"s3", "s3a"}:
        config = {_S3_NAMES.get(k, k): v for k, v in config.items()}
        path_style = config.pop("force_path_style", config.pop("path_style", None))
        if path_style is not None:
            config["virtual_hosted_style_request"] = str(path_style).lower() in {"false", "0"}
        endpoint = str(config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", ""))
        return S3Store(bucket, config=config, client_options=_client(endpoint, request_s_max), **common)
    if scheme in {"gs", "gcs"}:
        return GCSStore(bucket, config=config, client_options=_client(config.get("base_url", ""), request_s_max), **common)
    return AzureStore(bucket, config=config, client_options=_client(config.get("endpoint", ""), request_s_max), **common)


def cause_of(error: Exception) -> str:
    """Return the line of an error that says what happened.

    What follows repeats request and configuration, which may hold secrets. What was answered is left out, but for the code of an error:
    clients follow redirections, so an address that somebody chose may answer with what only this machine may read.
    """
    text = str(error).strip()
    line = _ANSWERED.sub(r"\1", (text.splitlines() or [type(error).__name__])[0])[:300]
    code = _CODE.search(text)
    return f"{line} ({code[1]})" if code else line


def _client(endpoint: str, request_s_max: float) -> Any:
    # Whoever names an endpoint without TLS means it.
    plain = {"allow_http": True} if endpoint.startswith("http://") else {}
    connect_s_max = min(_CONNECT_S_MAX, request_s_max)
    return {"timeout": dt.timedelta(seconds=request_s_max), "connect_timeout": dt.timedelta(seconds=connect_s_max), **plain}
