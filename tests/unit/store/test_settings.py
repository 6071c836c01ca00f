"""Settings of an event store."""

from penstock.store.settings import StoreSettings


def test_an_interval_that_no_store_can_keep_is_a_problem() -> None:
    assert StoreSettings().problems() == []
    for seconds in (0.0, 86_401.0):
        assert [field for field, _ in StoreSettings(objects_interval_s=seconds).problems()] == ["objects-interval"]
