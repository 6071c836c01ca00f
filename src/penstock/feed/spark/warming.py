"""Warming: one throw-away query of a feed's own shape, so that the first window of a feed does not pay for Spark's start.

Spark starts a Python process for each kind of work (planning, reading, writing, committing) when it is first needed, each imports what
it needs, and the JVM compiles what it runs; together that is more work than a million changes. The workers stay and are used
again by feeds. The query reads nothing and writes nothing. Runs in the driver; what it starts, on executors.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.feed.window.opaque import SPARK_SCHEMA, RowKind, opaque_row
from penstock.feed.window.run import activate

log = logging.getLogger(__name__)
WARM_S_MAX = 60.0


class _WarmReader(DataSourceStreamReader):
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"ts": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"ts": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # What a feed's reader imports, imported here for the worker that will be its.
        import penstock.feed.window.work_reader  # noqa: F401

        yield opaque_row("warm", RowKind.CLOSE)


class _WarmWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        import penstock.feed.window.delivery  # noqa: F401
        from penstock.sink.storage.warm_kernels import warm_encoder

        for _ in iterator:
            warm_encoder()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        import penstock.feed.window.barrier
        import penstock.sink.storage.maintainer  # noqa: F401

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


def warm_session(session: SparkSession) -> None:
    """Run the query once; a failure is only noted, because feeds work without it."""
    tasks = max(1, session.sparkContext.defaultParallelism)
    name = f"penstock_warm_{uuid.uuid4().hex}"

    class WarmSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return SPARK_SCHEMA

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            return _WarmReader(tasks)

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return _WarmWriter()

    folder = Path(tempfile.mkdtemp(prefix="penstock-warm-"))
    activate(session)
    try:
        session.dataSource.register(WarmSource)
        stream = session.readStream.format(name).load().writeStream.format(name).option("checkpointLocation", folder.as_uri())
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination(WARM_S_MAX)  # type: ignore[arg-type]
        query.stop()
    except PySparkException as error:
        log.warning("spark was not warmed: %s", str(error).partition("\n")[0])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
