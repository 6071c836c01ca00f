"""A server is ended by its own signals in turn, and killed only after the last of them."""

import signal
import subprocess
import sys

import pytest

from penstock.cli.demo.loopback import ORDERLY, POSTGRES_ENDS, end

DEAF_S = 2.0
PATIENT_S = 60.0


def server(*deaf_to: signal.Signals) -> subprocess.Popen[bytes]:
    script = "import signal, sys\n" + "".join(f"signal.signal({int(n)}, signal.SIG_IGN)\n" for n in deaf_to)
    script += "print('up', flush=True)\nsignal.pause()\nsys.exit(7)\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize(
    ("deaf_to", "signals", "wait_s", "ended_by"),
    [
        ((), ORDERLY, PATIENT_S, signal.SIGTERM),
        ((), POSTGRES_ENDS, PATIENT_S, signal.SIGINT),
        ((signal.SIGINT,), POSTGRES_ENDS, DEAF_S, signal.SIGQUIT),
        ((signal.SIGINT, signal.SIGQUIT), POSTGRES_ENDS, DEAF_S, signal.SIGKILL),
    ],
)
def test_a_server_is_ended_by_the_first_signal_that_it_obeys(deaf_to, signals, wait_s, ended_by):
    process = server(*deaf_to)
    end(process, wait_s, signals)
    assert process.returncode in {-ended_by, 1}, "an interrupt ends Python with 1"
    end(process, wait_s, signals)
