"""Types that several threads decode at once, each for the first time."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest

from penstock.model.decoding import decoded

_ROUNDS = 200


class Kept(msgspec.Struct, frozen=True):
    name: str
    sizes: tuple[int, ...] = ()


def made(number: int) -> type[msgspec.Struct]:
    """Return a struct that nobody has decoded: one of two others with many fields."""
    inner = msgspec.defstruct(f"Inner{number}", [(f"f{n}", int, 0) for n in range(40)])
    return msgspec.defstruct(f"Outer{number}", [("a", inner), ("b", list[inner])])  # type: ignore[valid-type]


def decode_at_once() -> None:
    """Decode new types from four threads at once; ends the process where that is not safe."""
    sys.setswitchinterval(1e-6)
    for number in range(_ROUNDS):
        kind, ready = made(number), threading.Barrier(4)
        found: list[object] = []

        def work(kind: type[msgspec.Struct] = kind, ready: threading.Barrier = ready, found: list[object] = found) -> None:
            ready.wait()
            found.append(decoded(b'{"a": {"f1": 1}, "b": [{"f2": 2}]}', kind))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [(o.a.f1, o.b[0].f2, o.b[0].f1) for o in found] == [(1, 2, 0)] * 4  # type: ignore[attr-defined]


def test_types_that_threads_decode_at_once() -> None:
    # In a process of its own, because what is not safe ends it.
    subprocess.run([sys.executable, "-c", "from tests.unit.model.test_decoding import decode_at_once as d; d()"], check=True, timeout=120)


def test_values_texts_and_unions() -> None:
    assert decoded('{"name": "x", "sizes": [1, 2]}', Kept) == Kept("x", (1, 2))
    assert decoded(b"[1, 2]", dict[str, int] | list[int]) == [1, 2]


def test_json_without_a_bottom_does_not_parse() -> None:
    for nested in (b'{"other":' + b"[" * 100_000, b'{"other":' * 100_000):
        with pytest.raises(msgspec.DecodeError):
            decoded(nested, Kept)
