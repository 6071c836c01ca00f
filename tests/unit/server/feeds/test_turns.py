"""Turns: so many at once, and none for a feed that is stopped meanwhile."""

import contextlib
import threading

from penstock.server.feeds.turns import StartTurns


def test_no_more_than_so_many_have_a_turn_and_all_get_one() -> None:
    turns, stop = StartTurns(2), threading.Event()
    lock, inside, most, done = threading.Lock(), 0, 0, 0

    def start() -> None:
        nonlocal inside, most, done
        with turns.turn(stop) as mine:
            assert mine
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
                done += 1

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert done == 20
    assert most <= 2


def test_a_feed_that_is_stopped_while_it_waits_has_no_turn_and_takes_none() -> None:
    turns, never, stop = StartTurns(1), threading.Event(), threading.Event()
    stop.set()
    with turns.turn(never) as first, turns.turn(stop) as second:
        assert (first, second) == (True, False)
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(turns.turn(never)), "the turn was given back once"
