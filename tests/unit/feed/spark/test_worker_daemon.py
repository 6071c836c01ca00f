"""The daemon of Spark's Python workers: what it loads before it forks, and what it leaves to the workers."""

import subprocess
import sys

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
