"""What brokers must allow for a feed to deliver there, checked one by one: the doctor's part about Kafka. Leaves nothing behind.

Runs wherever someone asks.
"""

from __future__ import annotations

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.maintainer import KafkaMaintainer
from penstock.sink.kafka.settings import Delivery
from penstock.sink.kafka.topics import Topics
from penstock.target.kind import NO_RUN


def check_kafka(address: KafkaAddress, feed: str | None) -> list[Finding]:
    """Return what was found; ``feed`` is the name of the feed that is meant to deliver there."""
    maintainer = KafkaMaintainer(address, NO_RUN, lambda: None)
    try:
        topics = Topics(address).known()
        owner = maintainer.owner()
    except PenstockError as error:
        return [Finding("target: reachable", False, f"[{error.code}] {error.detail}", error.hint)]
    findings = [Finding("target: reachable", True, f"{address.name}: {len(topics)} topics of this prefix", "brokers answer")]
    free = not owner or owner == feed
    findings.append(Finding("target: free", free, f"feed {owner}" if owner else "nobody's", "nobody's, or the feed's own"))
    if address.settings.delivery is Delivery.AT_LEAST_ONCE:
        said = "at least once: after a failure some messages come twice"
        findings.append(Finding("target: exactly once", False, said, "delivery = exactly-once", level=Level.NOTE))
        return findings
    try:
        maintainer.probe()
    except PenstockError as error:
        findings.append(Finding("target: transactions", False, f"[{error.code}] {error.detail}", error.hint))
    else:
        findings.append(Finding("target: transactions", True, "brokers have them, and let this user", "exactly once needs them"))
    return findings
