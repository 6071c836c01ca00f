"""The chain of checkpoints: unbroken history, bounded in length, read back as it was."""

from pathlib import Path

from penstock.model.batch import BatchKind
from penstock.store.objects.checkpoints import INCREMENTAL_MAX, CheckpointChain, CheckpointKind, checkpoint_prefix
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import ObjectSpace

SPAN_ID = 7


def meta(ts: int) -> ObjectMeta:
    return ObjectMeta(f"spans/7/objects/{ts}", ObjectKind.APPENDABLE, BatchKind.DATA, SPAN_ID, 3, ts, ts, 1, 10, 100, 8)


def chain_of(space: ObjectSpace, count: int) -> CheckpointChain:
    """Each step gives up ten more."""
    chain = CheckpointChain(space, SPAN_ID)
    for ts in range(10, 10 * count + 1, 10):
        chain.add(ts - 10, ts, None, [meta(ts)], [ts + 1])
    return chain


def test_a_chain_is_read_back_and_joins_the_manifest_or_not(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    chain = chain_of(space, 3)
    again = CheckpointChain.load(space, SPAN_ID)
    assert again.entries == chain.entries
    assert [entry.kind for entry in again.entries] == [CheckpointKind.GLOBAL, CheckpointKind.INCREMENTAL, CheckpointKind.INCREMENTAL]
    assert [o.max_ts for o in again.objects] == [10, 20, 30]
    assert again.transfer_ts == (11, 21, 31)
    assert again.reach(30) == again.entries[0]
    assert again.reach(31) is None, "a hole between chain and manifest"
    assert CheckpointChain.load(space, 8).entries == []


def test_many_become_one_that_holds_the_same(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    chain = chain_of(space, INCREMENTAL_MAX + 1)
    assert [(e.kind, e.from_ts, e.to_ts) for e in chain.entries] == [(CheckpointKind.GLOBAL, 0, 10 * (INCREMENTAL_MAX + 1))]
    assert [o.max_ts for o in chain.objects] == list(range(10, 10 * (INCREMENTAL_MAX + 1) + 1, 10))
    assert CheckpointChain.load(space, SPAN_ID).entries == chain.entries
    assert len(space.list_names(checkpoint_prefix(SPAN_ID))) == 1


def test_history_expires_by_whole_objects_and_is_given_up_as_a_whole(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    chain = chain_of(space, 3)
    assert chain.expire(9) == ()
    assert [o.max_ts for o in chain.expire(25)] == [10, 20]
    assert [(e.from_ts, e.to_ts, e.transfer_ts) for e in chain.entries] == [(20, 30, (21, 31))]
    assert CheckpointChain.load(space, SPAN_ID).entries == chain.entries
    assert [o.max_ts for o in chain.clear()] == [30]
    assert CheckpointChain.load(space, SPAN_ID).entries == []
