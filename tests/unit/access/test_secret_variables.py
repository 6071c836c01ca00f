from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.access.given_uris import GivenUris
from penstock.access.secret_variables import withheld

SECRETS = {
    "PENSTOCK_CONNECTION_LAKE": "s3://a?secret-access-key=x",
    "PENSTOCK_META_KEY": "k",
    "PENSTOCK_TOKEN": "t",
    "SOURCE_PASSWORD": "p",
}


def child_environment() -> dict[str, str]:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_process_that_is_started_does_not_get_the_secrets_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, "AWS_SECRET_ACCESS_KEY": "for tasks", "PENSTOCK_HOME": "/x"}.items():
        monkeypatch.setenv(name, value)
    assert GivenUris(os.environ, str).resolve("mysql://cdc:{env:SOURCE_PASSWORD}@h/") == "mysql://cdc:p@h/"
    assert SECRETS.items() <= child_environment().items()
    with withheld():
        given = child_environment()
    assert not SECRETS.keys() & given.keys()
    # What is meant for those who use the machine's own identity, and what is no secret, stays.
    assert (given["AWS_SECRET_ACCESS_KEY"], given["PENSTOCK_HOME"]) == ("for tasks", "/x")
    assert SECRETS.items() <= os.environ.items()
