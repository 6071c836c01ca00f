from __future__ import annotations

import random

import pytest

from penstock.meta.records import FeedRecord, ReachedState, RequestedState, ServerRecord, ServerState
from penstock.server.feeds.sharing import Share, share_of

A, B, C = (ServerRecord(owner) for owner in "abc")


def feeds(owners: str, **more: object) -> list[FeedRecord]:
    """Return a feed for each letter, owned by it; a point stands for nobody."""
    return [FeedRecord(f"f{at}", "u", "{}", owner=owner.strip("."), **more) for at, owner in enumerate(owners)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("owners", "servers", "share"),
    [
        ("....", [A], Share(0, 4, 0)),
        ("....", [], Share(0, 4, 0)),
        ("aab..", [A, B], Share(2, 3, 1)),
        ("aaa", [A, B, C], Share(3, 1, 0)),
        ("aabb", [A, B], Share(2, 2, 2)),
        # A server that drains is given nothing.
        ("aa..", [A, ServerRecord("b", state=ServerState.DRAINING)], Share(2, 4, 2)),
        # One that is gone has feeds still, which are shared among those who are there.
        ("aaccc", [A, B], Share(2, 3, 0)),
    ],
)
def test_share(owners: str, servers: list[ServerRecord], share: Share) -> None:
    found = feeds(owners)
    assert share_of("a", False, servers, found, {f.name for f in found if f.owner == "a"}) == share


def test_a_server_that_drains_wants_nothing() -> None:
    share = share_of("a", True, [A, B], feeds("aab."), {"f0", "f1"})
    assert (share.mine, share.wants_more) == (2, False)


def test_failed_and_removed_feeds_are_no_load() -> None:
    idle = [*feeds("..", reached_state=ReachedState.FAILED), *feeds("..", requested_state=RequestedState.REMOVED)]
    assert share_of("a", False, [A, B], [*feeds("..."), *idle], set()).fair == 2


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_feeds_come_to_rest_evenly_or_together_and_stay(seed: int, together: bool) -> None:
    """Servers that take and give by their shares end with as many feeds each as any other, but one, and move none after that.

    Those that share a log end in one place.
    """
    rng = random.Random(seed)
    servers = [ServerRecord(chr(97 + at)) for at in range(rng.randint(1, 5))]
    names = [f"f{at}" for at in range(rng.randint(0, 30))]
    owner = {name: rng.choice(["", *(s.owner for s in servers)]) for name in names}

    def step() -> int:
        moves = 0
        for server in rng.sample(servers, len(servers)):
            found = [FeedRecord(name, "u", "{}", owner=owner[name]) for name in names]
            mine = [name for name in names if owner[name] == server.owner]
            share = share_of(server.owner, False, servers, found, set(mine), together)
            free = [name for name in names if not owner[name]]
            if share.wants_more and free:
                owner[free[0]] = server.owner
                moves += 1
            elif share.gives_away:
                owner[mine[-1]] = ""
                moves += 1
        return moves

    for _ in range(200):
        if not step():
            break
    assert step() == 0
    counts = [sum(owner[name] == s.owner for name in names) for s in servers]
    assert sum(counts) == len(names)
    assert max(counts) == len(names) if together else max(counts) - min(counts) <= 1
