"""The archive of an installation: what is in it, and that it starts from wherever it is. That executors do: ``test_machines.py``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import penstock
from penstock.feed.spark import installation
from penstock.feed.spark.installation import installed_files, needed_distributions, pack, started_by

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    return installed_files(needed_distributions())


def test_it_has_what_executors_need_and_no_more(files: dict[str, Path]) -> None:
    packages = f"lib/{PYTHON}/site-packages"
    for needed in ("pyspark/worker.py", "pyarrow/flight.py", "psycopg_binary/__init__.py", "pymysql/__init__.py", "numba/__init__.py"):
        assert f"{packages}/{needed}" in files
    assert f"{packages}/penstock/feed/spark/worker_daemon.py" in files
    assert files[f"{packages}/penstock/__init__.py"] == Path(penstock.__file__).resolve()
    assert {f"bin/{PYTHON}", f"lib/{PYTHON}/os.py"} <= files.keys()
    left_out = re.compile(r"\.jar$|/pytest/|/mypy/|/hypothesis/|/ruff/|lib[cm]\.so\.6$|libX11|/test/|\.pth$|^/|\.\.")
    assert [name for name in files if left_out.search(name)] == []


def test_it_starts_where_it_is_unpacked(files: dict[str, Path], tmp_path: Path) -> None:
    """Its files stand here as links but for the interpreter, which looks beside itself; kernels keep the times that their caches know."""
    root = tmp_path / "any where"
    texts = started_by(files, [])
    for name, file in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name == f"bin/{PYTHON}" or (name.endswith("/kernels/jit.py") and "/penstock/" in name):
            shutil.copyfile(file, place)
            place.chmod(0o755)
        else:
            place.symlink_to(file)
    for name, (text, mode) in texts.items():
        (root / name).write_text(text)
        (root / name).chmod(mode)
    # Only what was copied may get its time back here: the others are links to the true files.
    kernel = next(name for name in files if name.endswith("/penstock/kernels/jit.py"))
    (root / "stamps.json").write_text(f'{{"{kernel}": {files[kernel].stat().st_mtime_ns}}}')
    told = "import sys, ssl, sqlite3, pyspark, penstock.feed.spark.jobs as j; print(sys.prefix, j.__file__, pyspark.__file__, sep='\\n')"
    bare = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/first"}
    for _ in range(2):
        done = subprocess.run(
            ["any where/bin/python", "-c", told], capture_output=True, text=True, cwd=tmp_path, env=bare, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        prefix, own, spark = done.stdout.splitlines()
        assert prefix == str(root)
        assert all(place.startswith(str(root)) for place in (own, spark))
    assert (root / kernel).stat().st_mtime_ns == files[kernel].stat().st_mtime_ns


def test_the_same_installation_gives_the_same_archive(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: file for name, file in files.items() if "/penstock/model/" in name and name.endswith(".py")}
    for at, chosen in enumerate((few, dict(reversed(few.items())))):
        monkeypatch.setattr(installation, "installed_files", lambda _, chosen=chosen: chosen)
        packed = pack(tmp_path / f"{at}.tar.gz", 1)
    assert (tmp_path / "0.tar.gz").read_bytes() == (tmp_path / "1.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as archive:
        entries = {entry.name: entry for entry in archive}
        assert entries.keys() == few.keys() | {"bin/python", "bin/stamp.py", "package.json", "stamps.json"}
        assert list(entries) == sorted(entries)
        assert {(e.uid, e.uname) for e in entries.values()} == {(0, "")}
        assert entries["bin/python"].mode == 0o755
        assert all(archive.extractfile(name).read() == file.read_bytes() for name, file in few.items())
    assert packed.files == len(entries)
    assert sorted(os.listdir(tmp_path)) == ["0.tar.gz", "1.tar.gz"]
