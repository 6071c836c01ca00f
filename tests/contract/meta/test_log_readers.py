"""The contract of a log's reader: whatever database keeps the lease, one server at a time has the log, and entries are its own."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from penstock.meta.database import MetaDatabase
from penstock.meta.log_journal import JournalEntry, JournalSettings, LogJournal
from penstock.model.errors import PenstockError

READERS, TURNS = 6, 8
SETTINGS = JournalSettings(lease_s=60.0)


def test_of_many_that_want_a_log_one_has_it(url: str) -> None:
    """Each that gets it writes what it alone may write, as fast as it can: several entries within a millisecond."""
    MetaDatabase(url).close()
    inside, most, ts, errors = 0, 0, 0, list[BaseException]()
    counting = threading.Lock()

    def read(name: str) -> None:
        nonlocal inside, most, ts
        journal, done = LogJournal(url, "log", SETTINGS, reader=name), 0
        try:
            while done < TURNS:
                try:
                    journal.hold()
                except PenstockError as error:
                    if error.code != "LOG_HELD":
                        raise
                    threading.Event().wait(0.002)
                    continue
                with counting:
                    inside += 1
                    most = max(most, inside)
                for _ in range(5):
                    with counting:
                        ts += 1
                        mine = ts
                    journal.save(JournalEntry(mine, f"{name} {mine}"))
                with counting:
                    inside -= 1
                journal.let_go()
                done += 1
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            errors.append(error)
        finally:
            journal.close()

    threads = [threading.Thread(target=read, args=(f"server{n}~1",)) for n in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (most, ts) == (1, READERS * TURNS * 5)


def test_a_reader_whose_answer_was_lost_goes_on(url: str) -> None:
    """It does not know whether it has the log; nobody else does, so it may."""
    MetaDatabase(url).close()
    with ExitStack() as stack:
        lost = LogJournal(url, "log", SETTINGS, reader="a~1")
        lost.hold()
        lost.close()
        again = LogJournal(url, "log", SETTINGS, reader="a~1")
        stack.callback(again.close)
        again.hold()
        again.save(JournalEntry(3, "x"))
        assert again.first() == JournalEntry(3, "x")
