import pytest

from penstock.format.layout.checkpoint import parse_checkpoint, render_checkpoint
from penstock.model.errors import PenstockError


def test_checkpoint() -> None:
    assert render_checkpoint(433305438660591626) == b'{"checkpoint-ts":433305438660591626}'
    named = render_checkpoint(433305438660591626, {"shop.ö": "doubtful", "shop.b": "quarantined"})
    assert named == '{"checkpoint-ts":433305438660591626,"not-covered":{"shop.b":"quarantined","shop.ö":"doubtful"}}'.encode()
    assert parse_checkpoint(named) == 433305438660591626
    assert parse_checkpoint(b'{\n  "checkpoint-ts": 433305438660591626\n}') == 433305438660591626


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"checkpoint-ts":"x"}', b'{"checkpoint-ts":-1}', b'{"checkpoint-ts":true}'])
def test_malformed_checkpoints(content: bytes) -> None:
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.*metadata"):
        parse_checkpoint(content)
