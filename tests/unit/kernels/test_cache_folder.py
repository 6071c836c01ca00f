from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.kernels.cache_folder import VARIABLE, spare_folder


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that nobody can make, not even root."""
    (tmp_path / "file").write_bytes(b"")
    return tmp_path / "file" / "folder"


def test_a_usual_folder_that_can_be_written_is_left_to_numba(tmp_path: Path, closed: Path) -> None:
    assert spare_folder([closed, tmp_path / "new"], tmp_path) is None


def test_without_one_the_folder_is_private_and_the_same_each_time(tmp_path: Path, closed: Path) -> None:
    folder = spare_folder([closed], tmp_path)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert spare_folder([closed], tmp_path) == folder


@pytest.mark.parametrize("planted", ["open", "link"])
def test_a_folder_that_somebody_prepared_is_not_used(tmp_path: Path, closed: Path, planted: str) -> None:
    name = tmp_path / f"penstock-kernels-{os.geteuid()}"
    if planted == "open":
        name.mkdir()
        name.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir(mode=0o700)
        name.symlink_to(tmp_path / "theirs")
    folder = spare_folder([closed], tmp_path)
    assert folder is not None
    assert folder.resolve() not in {name.resolve(), name}
    assert folder.stat().st_mode & 0o077 == 0


def test_a_kernel_is_made_where_neither_the_installation_nor_a_home_can_be_written(tmp_path: Path, closed: Path) -> None:
    """The process sees its modules in a folder whose ``__pycache__`` is a file, which closes it to root as well."""
    package = tmp_path / "site" / "penstock" / "kernels"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_bytes(b"")
    source = Path(sys.modules[spare_folder.__module__].__file__ or "").parent
    for name in ("__init__.py", "cache_folder.py", "jit.py", "memory.py"):
        (package / name).write_bytes((source / name).read_bytes())
    (package / "__pycache__").write_bytes(b"")
    environment = {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(closed), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    program = "from penstock.kernels.memory import signed; print(signed.stats.cache_path)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / f"penstock-kernels-{os.geteuid()}")
    assert VARIABLE not in environment
