import random

from penstock.sink.storage.encode.active_set import ActiveSet


def test_the_active_set_holds_what_is_active_since_when() -> None:
    rng = random.Random(3)
    active: ActiveSet[int] = ActiveSet()
    model: dict[int, float] = {}
    for step in range(5000):
        key, now = rng.randrange(40), float(step)
        match rng.randrange(4):
            case 0 | 1:
                since = now - rng.random()
                active.add(key, since)
                model.setdefault(key, since)
            case 2:
                active.discard(key)
                model.pop(key, None)
            case _:
                before = now - rng.randrange(30)
                due = sorted((k for k, since in model.items() if since <= before), key=lambda k: model[k])
                assert active.due(before) == due
                for k in due:
                    del model[k]
        assert len(active) == len(model)
        assert active.earliest_s() == min(model.values(), default=None)
        assert (key in active) == (key in model)
    assert len(active._heap) < 200
