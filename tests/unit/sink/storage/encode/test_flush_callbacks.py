"""When events count as flushed, against a model that knows the file of every row."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sink.storage.encode.flush_callbacks import FlushCallbacks


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 5))
def test_an_event_is_done_with_the_file_of_its_last_row(events: list[int], rows_per_file: int) -> None:
    callbacks, done, in_file = FlushCallbacks(), [], 0
    for number, rows in enumerate(events):
        callbacks.place(rows)
        callbacks.add(lambda number=number: done.append(number))
        callbacks.settle()
        for _ in range(rows):
            in_file += 1
            if in_file == rows_per_file:
                callbacks.cut(in_file)
                in_file = 0
        for callback in callbacks.take():
            callback()
        cut = sum(events[: number + 1]) - in_file
        assert done == [n for n in range(number + 1) if sum(events[: n + 1]) <= cut]
        assert callbacks.rows_wait == (in_file > 0)


def test_an_event_whose_rows_are_held_back_waits_until_they_are_placed() -> None:
    callbacks, done = FlushCallbacks(), []
    callbacks.add(lambda: done.append(1))
    assert callbacks.take() == ()
    callbacks.place(2)
    callbacks.settle()
    callbacks.cut(1)
    assert callbacks.take() == ()
    callbacks.cut(1)
    (callback,) = callbacks.take()
    callback()
    assert (done, callbacks.take()) == ([1], ())
