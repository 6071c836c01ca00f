import threading

from penstock.sink.wake_gate import WakeGate, WakeGateSettings

WAIT_S = 120


def test_the_gate_bounds_events_and_bytes_and_opens_at_a_failure() -> None:
    gate = WakeGate(WakeGateSettings(events_max=3, bytes_max=100))
    wakes = [gate.enter(40), gate.enter(40)]
    passed = threading.Event()

    def third() -> None:
        wakes.append(gate.enter(40))
        passed.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not passed.wait(0.05)
    wakes[0]()
    assert passed.wait(WAIT_S)
    thread.join()
    for wake in wakes[1:]:
        wake()
    assert gate.events == 0
    # A larger one passes alone.
    gate.enter(1_000)()
    gate.enter(99)
    late = threading.Thread(target=gate.enter, args=(99,))
    late.start()
    gate.open()
    late.join(WAIT_S)
    assert not late.is_alive()
