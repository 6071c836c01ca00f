"""A server is ended by its own signals in turn, and killed only after the last of them."""

import signal
import subprocess
import sys

import pytest

from penstock.cli.demo.loopback import ORDERLY, end

BRIEFLY_S = 0.1
PATIENTLY_S = 300.0


def server(*deaf_to: signal.Signals) -> subprocess.Popen[bytes]:
    # Whoever runs the tests by nohup has had a signal ignored, and so has what they start.
    script = "import signal, sys\n" + "".join(f"signal.signal({int(n)}, signal.SIG_DFL)\n" for n in (signal.SIGHUP, signal.SIGTERM))
    script += "".join(f"signal.signal({int(n)}, signal.SIG_IGN)\n" for n in deaf_to)
    script += "print('up', flush=True)\nsignal.pause()\nsys.exit(7)\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize(
    ("deaf_to", "signals", "ended_by"),
    [
        ((), ORDERLY, signal.SIGTERM),
        ((signal.SIGINT,), ((signal.SIGINT, BRIEFLY_S), (signal.SIGHUP, PATIENTLY_S)), signal.SIGHUP),
        ((signal.SIGINT, signal.SIGHUP), ((signal.SIGINT, BRIEFLY_S), (signal.SIGHUP, BRIEFLY_S)), signal.SIGKILL),
    ],
)
def test_a_server_is_ended_by_the_first_signal_that_it_obeys(deaf_to, signals, ended_by):
    process = server(*deaf_to)
    end(process, signals)
    assert process.returncode == -ended_by
    end(process, signals)
