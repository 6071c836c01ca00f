from hypothesis import given
from hypothesis import strategies as st

from penstock.feed.window.packing import pack_by_bytes, tasks_for


def test_largest_items_go_to_different_groups():
    groups = pack_by_bytes([(10, "a"), (90, "b"), (80, "c"), (5, "d")], 2)
    assert groups == [["b", "d"], ["a", "c"]]


def test_fewer_items_than_partitions_gives_no_empty_group():
    assert pack_by_bytes([(1, "a")], 8) == [["a"]]
    assert pack_by_bytes([], 8) == []


@given(st.lists(st.integers(0, 1 << 30), max_size=60), st.integers(1, 9))
def test_every_item_once_and_no_group_far_above_the_fair_share(sizes, partitions):
    items = [(size, index) for index, size in enumerate(sizes)]
    groups = pack_by_bytes(items, partitions)
    assert sorted(i for g in groups for i in g) == list(range(len(sizes)))
    assert all(g for g in groups)
    assert len(groups) == min(partitions, len(sizes))
    if groups:
        fair = sum(max(1, s) for s in sizes) / len(groups)
        assert max(sum(max(1, sizes[i]) for i in g) for g in groups) <= fair + max(1, *sizes, 1)
    assert pack_by_bytes(items, partitions) == groups


def test_light_windows_take_few_tasks_and_heavy_ones_all():
    mib = 1 << 20
    assert [tasks_for(sizes, 8) for sizes in ([0], [100] * 16, [100] * 17, [mib, 1], [mib // 2] * 6, [100 * mib])] == [1, 1, 2, 2, 3, 8]
    assert tasks_for([0] * 1000, 8) == 8
