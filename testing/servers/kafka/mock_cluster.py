"""librdkafka's own mock of a Kafka cluster, several brokers in a process of its own.

It checks the protocol as its authors mean it, and takes transactions; but it makes no difference between what was committed and what was
aborted, and keeps only the newest messages. Runs in tests; ``python -m testing.servers.kafka.mock_cluster`` is the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BROKERS = 3


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Run a cluster in another process; yield the addresses of its brokers."""
    command = [sys.executable, "-m", "testing.servers.kafka.mock_cluster"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(60)


def main() -> None:
    """Serve until standard input ends."""
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": str(_BROKERS)})
    found = holder.list_topics(timeout=60).brokers.values()
    print(",".join(f"{one.host}:{one.port}" for one in found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
