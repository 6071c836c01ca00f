"""Partitions against librdkafka's own partitioner."""

import random

import numpy as np
from confluent_kafka import Producer

from penstock.sink.kafka.encode.partitions import partition_of, partitions_of
from testing.servers.kafka.broker import kafka_broker
from testing.servers.kafka.consumer import read_topics


def test_keys_are_where_other_producers_put_them() -> None:
    rng = random.Random(5)
    keys = list({rng.randbytes(size) for size in range(1, 60) for _ in range(5)})
    with kafka_broker(partitions=7) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
        for key in keys:
            producer.produce("t", b"", key)
        assert producer.flush(60) == 0
        theirs = {m.key: m.partition for m in read_topics(broker.address, ["t"])}
    assert {key: partition_of(key, 7) for key in keys} == theirs
    data = np.frombuffer(b"".join(key + b"\n" for key in keys), np.uint8)
    offsets = np.cumsum([0, *(len(key) + 1 for key in keys)]).astype(np.int64)
    assert dict(zip(keys, partitions_of(data, offsets, 7, skip=1).tolist(), strict=True)) == theirs


def test_the_hash_is_kafkas() -> None:
    # The first values of the test of Kafka's own client (UtilsTest.testMurmur2), modulo 1000.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: partition_of(key, 1000) for key in known} == {key: (value & 0x7FFFFFFF) % 1000 for key, value in known.items()}
