from penstock.source.postgres.commit_log import CommitLog
from penstock.source.single_log import LogPosition


def test_the_ts_of_recent_places():
    import numpy as np

    log = CommitLog(entries_max=2)
    assert log.ts_at(5, 0) is None
    log.begin(LogPosition(10, "0/5"))
    assert log.ts_at(5, 0) == 10
    log.add(np.array([20, 30]), np.array([100, 200], dtype=np.uint64))
    assert [log.ts_at(n, 0) for n in (19, 20, 29, 30, 31)] == [10, 100, 100, 200, None]
    log.add(np.array([40]), np.array([300], dtype=np.uint64))
    log.add(np.array([50]), np.array([400], dtype=np.uint64))
    assert [log.ts_at(n, 0) for n in (20, 30, 45, 50)] == [None, 200, 300, 400]
    assert log.last_ts() == 400
    log.end()
    assert log.ts_at(50, 0) is None
