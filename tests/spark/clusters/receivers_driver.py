"""The driver of ``test_receivers.py``: hosts receivers on a loopback cluster and answers line by line, in a process of its own."""

from __future__ import annotations

import json
import sys

from penstock.feed.receivers import Receivers, ReceiverSettings
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.span import Span


def main() -> None:
    plan = json.loads(sys.argv[1])
    session = open_session(SparkSettings("local-cluster[2,1,1024]"))
    settings = ReceiverSettings(receivers=2, flush_interval_s=0.5, look_interval_s=0.1)
    receivers = Receivers(session, plan["source"], plan["objects"], settings)
    receivers.start([Span(table_id) for table_id in plan["tables"]], plan["start_ts"])
    print("token", receivers.token, flush=True)
    for line in sys.stdin:
        if line.strip() == "addresses":
            found = {
                span_id: {"location": a.location, "attempt": a.attempt, "pid": a.pid, "group": a.group}
                for span_id, a in receivers.addresses().items()
            }
            print("answer", json.dumps({"spans": found, "error": receivers.error}), flush=True)
        else:
            break
    receivers.close()
    print("closed", receivers.error or "well", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
