"""What executors are started with: nothing of the driver's paths where they may be on another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import penstock
from penstock.feed.spark.executors import executor_conf, executor_python, is_one_machine, own_authentication

HERE = "-Dlog4j2.configurationFile=file:/here/log4j2.properties -XX:SharedArchiveFile=/here/x.jsa"
CLUSTERS = ["spark://10.0.0.7:7077", "spark://a:7077,127.0.0.1:7078", "yarn", "k8s://https://10.0.0.7:6443"]


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://localhost:7077,[::1]:7"]
)
def test_executors_of_this_machine_have_its_files(master: str) -> None:
    assert is_one_machine(master)
    conf = executor_conf(master, {}, "", "-XX:+A", HERE)
    assert conf["spark.executor.extraJavaOptions"] == f"-XX:+A {HERE}"
    assert str(Path(penstock.__file__).resolve().parent.parent) in conf["spark.executorEnv.PYTHONPATH"].split(":")
    assert "spark.archives" not in conf
    assert executor_python({}, "") == sys.executable


@pytest.mark.parametrize("master", CLUSTERS)
def test_with_an_archive_no_path_of_the_driver_is_told(master: str) -> None:
    assert not is_one_machine(master)
    conf = executor_conf(master, {"spark.archives": "hdfs:///x.zip#x"}, "s3a://code/penstock.tar.gz", "-XX:+A", HERE)
    assert conf["spark.archives"] == "hdfs:///x.zip#x,s3a://code/penstock.tar.gz#penstock"
    paths = {sys.prefix, sys.base_prefix, sys.executable, str(Path(penstock.__file__).parent), "/here"}
    assert not [(key, value) for key, value in conf.items() for path in paths if path in value]
    assert executor_python({}, "penstock.tar.gz") == "./penstock/bin/python"


@pytest.mark.parametrize("master", CLUSTERS)
def test_an_interpreter_that_is_there_is_taken(master: str) -> None:
    conf = {"spark.pyspark.python": "/opt/penstock/bin/python"}
    assert executor_python(conf, "") == executor_python(conf, "penstock.tar.gz") == "/opt/penstock/bin/python"
    assert "spark.executorEnv.PYTHONPATH" not in executor_conf(master, conf, "", "-XX:+A", HERE)
    # Where neither is said, this installation is at the same path on every machine.
    assert "spark.executorEnv.PYTHONPATH" in executor_conf(master, {}, "", "-XX:+A", HERE)


def test_processes_of_this_machine_know_each_other_and_no_stranger() -> None:
    assert own_authentication("local[2]", {}) == {"spark.authenticate": "true"}
    first, second = (own_authentication("local-cluster[2,1,1024]", {"spark.x": "y"}) for _ in range(2))
    assert first["spark.authenticate"] == "true"
    assert len(first["spark.authenticate.secret"]) > 40
    assert first != second
    # What the operator says counts, and a cluster of theirs has a secret of its own.
    assert own_authentication("local[2]", {"spark.authenticate": "false"}) == {}
    assert own_authentication("spark://127.0.0.1:7077", {}) == {}
