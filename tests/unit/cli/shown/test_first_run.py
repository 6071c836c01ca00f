from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.shown import first_run
from penstock.cli.shown.first_run import prepare_first_run
from penstock.server import warm_kernels


def test_the_first_run_says_each_step_and_the_second_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    for module in (first_run, warm_kernels):
        monkeypatch.setattr(module, "mark_file", lambda: mark)
    prepare_first_run()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("first run of this installation: compiling kernels")
    assert [line.split(":")[0] for line in lines[1:]] == [f"  compiling {number}/5" for number in range(1, 6)]
    assert mark.is_file()
    prepare_first_run()
    assert capsys.readouterr() == ("", "")
