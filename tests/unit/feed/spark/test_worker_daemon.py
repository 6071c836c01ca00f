"""The daemon of Spark's Python workers: what it loads before it forks, and what it leaves to the workers."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.feed.spark.worker_daemon import put_off

_PRELOADED = """
import os, sys
from penstock.feed.spark.worker_daemon import preload
preload()
# A memory allocator's own threads know forks.
threads = {open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task") if int(t) != os.getpid()}
print(sorted(t for t in threads if not t.startswith("jemalloc")), "penstock.feed.window.delivery" in sys.modules,
      sys.modules["polars"].__file__ if hasattr(sys.modules["polars"], "__file__") else "put off")
sys.stdout.flush()
child = os.fork()
if child == 0:
    from penstock.sink.storage.warm_kernels import warm_encoder
    warm_encoder()
    import polars
    print(polars.Series([1, 2]).sum(), type(sys.modules["polars"]).__name__)
    sys.stdout.flush()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_workers_come_from_a_process_without_threads_and_find_everything() -> None:
    environment = {"OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _PRELOADED], capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[] True put off", "3 module"]


def test_a_module_that_is_put_off_is_loaded_once_by_whoever_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads want something of it at the same time, one of them something that it does not have."""
    (tmp_path / "put_off_here.py").write_text(
        "import threading, put_off_here\nloads = [1]\nthreading.Event().wait(0.2)\nvalue = put_off_here.loads\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    put_off("put_off_here")
    import put_off_here

    def use(number: int) -> object:
        return getattr(put_off_here, "value" if number else "nothing", "missing")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(use, range(16)))
    assert found == ["missing", *[[1]] * 15]
    assert len({id(value) for value in found[1:]}) == 1
    assert sys.modules.pop("put_off_here").value is found[1]
