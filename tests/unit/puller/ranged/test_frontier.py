"""The frontier of a span against the smallest resolved ts, counted anew each time."""

import random
from dataclasses import dataclass

from penstock.puller.ranged.frontier import Frontier


@dataclass
class Piece:
    resolved_ts: int
    gone: bool = False


def test_without_a_piece_nothing_is_resolved() -> None:
    frontier = Frontier()
    assert frontier.resolved_ts() == 0
    assert frontier.slowest() is None


def test_it_is_the_minimum_whatever_happens_to_pieces() -> None:
    rng = random.Random(7)
    frontier, pieces = Frontier(), list[Piece]()
    for _ in range(2_000):
        alive = [p for p in pieces if not p.gone]
        what = rng.random()
        if what < 0.1 or not alive:
            pieces.append(Piece(rng.randrange(1, 50)))
            frontier.add(pieces[-1])
        elif what < 0.2:
            rng.choice(alive).gone = True
        else:
            rng.choice(alive).resolved_ts += rng.randrange(0, 20)
        left = [p for p in pieces if not p.gone]
        assert frontier.resolved_ts() == min((p.resolved_ts for p in left), default=0)
        slowest = frontier.slowest()
        assert slowest is None if not left else slowest in left
