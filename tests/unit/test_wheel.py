"""What the wheel holds: every file that ships, by the project's own declaration. `make wheel-test` builds and runs it."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("wheel_check", ROOT / "scripts" / "wheel_check.py")
assert SPEC is not None
assert SPEC.loader is not None
CHECK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CHECK)


def test_every_file_that_ships_is_declared() -> None:
    shipping = CHECK.shipping(ROOT / "src" / "penstock")
    assert CHECK.declared(ROOT) == shipping
    assert {"penstock/py.typed", "penstock/cli/main.py", "penstock/server/page/page.html", "penstock/source/proto/cdc.proto"} <= shipping
    assert not {name for name in shipping if name.split("/")[0] != "penstock" or {"tests", "testing", "benchmarks"} & set(name.split("/"))}


def test_a_wheel_that_lacks_or_adds_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = CHECK.shipping(ROOT / "src" / "penstock") | {"penstock-0.0.0.dist-info/RECORD"}
    wheel = tmp_path / "penstock-0.0.0-py3-none-any.whl"

    def write(files: set[str]) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in files:
                archive.writestr(name, b"")

    write(names)
    assert CHECK.main(wheel) == 0
    write(names - {"penstock/py.typed"} | {"testing/twin.py"})
    assert CHECK.main(wheel) == 1
    assert capsys.readouterr().err.splitlines() == [f"{wheel.name}: missing: penstock/py.typed", f"{wheel.name}: not ours: testing/twin.py"]
