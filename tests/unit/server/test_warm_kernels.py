from penstock.format.csv.encoder import write_rows
from penstock.server.warm_kernels import warm_kernels


def test_every_codec_is_compiled_by_one_pass_and_not_again_by_the_next():
    warm_kernels()
    compiled = len(write_rows.signatures)
    assert compiled
    warm_kernels()
    assert len(write_rows.signatures) == compiled
