from __future__ import annotations

import shutil
import subprocess

import pytest

from penstock.cli.main import VERBS, cli, run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=script, text=True, capture_output=True, timeout=60, check=False).stderr == ""


def test_what_the_script_asks_for_is_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock ", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.main(args=[], prog_name="penstock", complete_var="_PENSTOCK_COMPLETE")
    assert {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()} == set(VERBS)
