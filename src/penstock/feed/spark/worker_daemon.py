"""The process that Spark forks its Python workers from, with what they need loaded before the first fork.

Spark's own daemon is empty, so every worker imports everything and loads every kernel again, which takes longer than encoding a million
rows, and after each task goes through all of these objects for garbage. Here they are loaded once, shared by all workers, and no garbage.
Invariant: nothing is started here that a fork would break. Polars starts threads when it is imported, so it is here by name only, and comes
to be in the worker that first uses it. Runs on executors; Spark starts it by its module's name.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from types import ModuleType

_LOADED = (
    "pyspark.worker",
    "penstock.feed.spark.jobs",
    "penstock.feed.window.delivery",
    "penstock.sink.storage.sink",
)


_loading = threading.RLock()
"""A task reads and encodes in several threads, and the first uses may come at the same time."""


class PutOffModule(ModuleType):
    """Stands for a module until something of it is used. Thread safe."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            # The import system asks for these, and they are not a use.
            raise AttributeError(name)
        with _loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            found = vars(importlib.import_module(self.__name__))
            self.__dict__.update(found)
        if name not in found:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return found[name]


def put_off(name: str) -> None:
    """Let a module be imported by name now, and be loaded when something of it is used."""
    if name not in sys.modules:
        sys.modules[name] = PutOffModule(name)


def preload() -> None:
    """Load what workers need."""
    put_off("polars")
    for name in _LOADED:
        importlib.import_module(name)
    from penstock.sink.storage.warm_kernels import load_encoder

    load_encoder()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Load, then serve as Spark's daemon does."""
    from pyspark.daemon import manager

    preload()
    manager()


if __name__ == "__main__":
    main()
