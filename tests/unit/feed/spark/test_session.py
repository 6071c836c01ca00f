"""The session's own rules. What a started session does: ``tests/spark``."""

from __future__ import annotations

import re

import pytest

from penstock.feed.spark.session import _SECRET_NAMES


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.sas.container.lake.blob.core.windows.net", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.s3a.encryption.key", True),
        ("spark.hadoop.fs.gs.auth.service.account.private.key", True),
        ("spark.ssl.keyPassword", True),
        ("spark.authenticate.secret", True),
        ("spark.executorEnv.AWS_SESSION_TOKEN", True),
        ("spark.executor.memory", False),
        ("spark.scheduler.mode", False),
        ("spark.python.daemon.module", False),
    ],
)
def test_spark_hides_settings_whose_names_tell_a_secret(name: str, hidden: bool) -> None:
    assert bool(re.search(_SECRET_NAMES, name)) == hidden
