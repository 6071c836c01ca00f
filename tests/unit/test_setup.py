"""Set-up of a clone, with programs on the path that only say what they were asked: what is installed, told, and left after Ctrl-C.

Nothing of the machine is asked or changed: the path has the fakes and the plain tools of a shell, the system is a folder of the test, and
the user is never root.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "basename bash cat cp chmod dirname env find grep head ls mkdir mkfifo mv readlink rm sed sh sleep tail tee touch true wc"
NEVER = threading.Event()
RELEASES = {
    "bookworm": {"python3": "3.11.2-1+b1", "openjdk-17-jre-headless": "17.0.15"},
    "trixie": {"python3": "3.13.5-1", "openjdk-21-jre-headless": "21.0.8"},
    "jammy": {"python3": "3.10.6-1", "python3.11": "3.11.0~rc1-1", "openjdk-17-jre-headless": "17.0.15"},
}


class Machine:
    """A machine that has what a test gives it, with a clone of the scripts."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.bin, self.told = folder / "clone", folder / "bin", folder / "told"
        self.bin.mkdir()
        for tool in TOOLS.split():
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        (self.clone / "scripts").mkdir(parents=True)
        for name in ("setup.sh", "toolchain.sh"):
            shutil.copy(ROOT / "scripts" / name, self.clone / "scripts")
        (self.clone / "constraints-hashes.txt").write_text("one==1\n# What tests, documentation and development need besides.\ntwo==2\n")
        self.told.touch()
        self.has("id", "echo 1000")
        self.has("dpkg-query", "exit 1")

    def has(self, name: str, script: str) -> None:
        """Lay a program in; `told` in it writes a line down."""
        (self.bin / name).write_text(f'#!/bin/bash\ntold() {{ echo "$*" >>"{self.told}"; }}\n{script}\n')
        (self.bin / name).chmod(0o755)

    def has_debian(self, release: str, apt_get: str = 'told "apt-get $*"') -> None:
        """Lay in Debian's programs, and a sudo that asks nothing."""
        for package, version in RELEASES[release].items():
            (self.clone.parent / f"{package}.candidate").write_text(version)
        candidate = f'file="{self.clone.parent}/$2.candidate"'
        self.has("apt-cache", f'{candidate}; echo "$2:"; if [ -e "$file" ]; then echo "  Candidate: $(cat "$file")"; fi')
        self.has("apt-get", apt_get)
        self.has("sudo", 'shift; "$@"')
        (self.clone.parent / "usr" / "sbin").mkdir(parents=True)

    def has_python(self, version: str = "3.11") -> None:
        """Lay in a Python whose virtual environments have a pip that writes down what it is asked."""
        inner = f'''case "$*" in
          "-c "*sys.exit*) exit {int(tuple(map(int, version.split("."))) < (3, 11))} ;;
          "-c "*) ;;
          "--version") echo "Python {version}" ;;
          "- "*) echo "digest of $(cat constraints-hashes.txt | head -n 1)" ;;
          "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/bin/pip; chmod 755 .venv/bin/pip ;;
          "-m pip "*) . "{self.bin}/pip" "$@" ;;
          *) told "python $*" ;;
        esac'''
        self.has("python3", inner)
        self.has("pip", 'told "pip $*"; touch .venv/bin/penstock; chmod 755 .venv/bin/penstock')

    def has_java(self, version: str, folder: Path | None = None) -> None:
        """Lay in a Java."""
        home = folder or self.clone.parent / "usr" / "lib" / "jvm" / "java"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text(f"#!/bin/bash\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
        (home / "bin" / "java").chmod(0o755)

    @property
    def policy(self) -> Path:
        """Where a package's script asks whether it may start a service."""
        return self.clone.parent / "usr" / "sbin" / "policy-rc.d"

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": str(self.clone.parent), "PENSTOCK_SETUP_SYSTEM": str(self.clone.parent)}

    def setup(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.clone / "scripts" / "setup.sh"), *args]
        return subprocess.run(command, env=self.environment | more, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def asks(self, expression: str, **more: str) -> str:
        """Return what a line of shell prints that has the functions of the tool chain."""
        done = subprocess.run(
            ["/bin/bash", "-c", f". scripts/toolchain.sh; {expression}"],
            cwd=self.clone,
            env=self.environment | more,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    @property
    def lines(self) -> list[str]:
        return self.told.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        ("bookworm", "python3 python3-venv openjdk-17-jre-headless"),
        ("trixie", "python3 python3-venv openjdk-21-jre-headless"),
        ("jammy", "python3.11 python3.11-venv openjdk-17-jre-headless"),
    ],
)
def test_a_user_without_root_gets_one_message_with_everything_that_is_missing(machine: Machine, release: str, packages: str) -> None:
    machine.has_debian(release)
    (machine.bin / "sudo").unlink()
    done = machine.setup("run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "setup: error: this machine lacks Python 3.11 or newer, Java 17 or newer, and installing needs root",
        f"setup: hint: Run: sudo scripts/setup.sh packages run   (it installs {packages} and enables no service)",
    ]
    assert machine.lines == []


def test_what_the_demo_is_asked_for_is_in_the_line_for_root(machine: Machine) -> None:
    machine.has_debian("trixie")
    machine.has_python("3.10")
    (machine.bin / "sudo").unlink()
    told = machine.setup("run", "--source", "mysql").stderr
    assert "lacks Python 3.11 or newer, Java 17 or newer, the databases that are started here, and" in told
    assert "Run: sudo scripts/setup.sh packages run --source mysql   (it installs" in told
    assert "openjdk-21-jre-headless mariadb-server-core mariadb-client-core and enables" in told
    told = machine.setup("test").stderr
    assert "mariadb-client postgresql npm and enables" in told


def test_another_system_is_told_what_to_install(machine: Machine) -> None:
    done = machine.setup()
    assert done.returncode == 2
    assert "lacks Python 3.11 or newer, Java 17 or newer, and it is not Debian or Ubuntu" in done.stderr


def test_a_level_that_is_not_known_is_refused(machine: Machine) -> None:
    done = machine.setup("everything")
    assert (done.returncode, "setup: error: what is everything?" in done.stderr) == (2, True)


APT_THAT_BRINGS_JAVA = """told "apt-get $*"
[ "$1" = update ] && exit
told "services: $(sed -n 2p "$HOME/usr/sbin/policy-rc.d")"
mkdir -p "$HOME/usr/lib/jvm"
cp -r "$HOME/packed" "$HOME/usr/lib/jvm/java"
"""


def test_everything_is_installed_at_once_and_no_service_may_start_meanwhile(machine: Machine) -> None:
    machine.has_debian("trixie", APT_THAT_BRINGS_JAVA)
    machine.has_java("21.0.1", machine.clone.parent / "packed")
    machine.has_python()
    done = machine.setup("packages", "run", PENSTOCK_SETUP_LOG=str(machine.clone.parent / "log"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["setup: refreshing the package index", "setup: installing openjdk-21-jre-headless"]
    update, install, services = machine.lines
    assert update.startswith("apt-get update ")
    assert install.startswith("apt-get install -y ")
    assert install.endswith(" openjdk-21-jre-headless -q")
    assert services == "services: exit 101", "no, says it to whoever would start one"
    assert not machine.policy.exists()
    assert not (machine.clone / ".venv").exists()
    assert not (machine.clone / "build").exists()


def test_where_apt_fails_its_last_lines_are_shown_and_services_may_start_again(machine: Machine) -> None:
    machine.has_debian("trixie", 'told "apt-get $1"; [ "$1" = update ] || { echo "E: no such host"; exit 100; }')
    machine.has_python()
    done = machine.setup("run")
    assert done.returncode == 2
    assert "  | E: no such host\n" in done.stderr
    assert "setup: error: apt-get could not install openjdk-21-jre-headless\n" in done.stderr
    assert machine.lines == ["apt-get update", "apt-get install"]
    assert not machine.policy.exists()


APT_WHOSE_LOCK_IS_TAKEN = """told "apt-get $1"
if [ "$(wc -l <"$HOME/told")" -le "${TAKEN:-999999}" ]; then
  echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2
  exit 100
fi
echo "E: no such host" >&2
exit 100
"""


def test_another_apt_get_is_waited_for_and_another_failure_is_not(machine: Machine) -> None:
    machine.has_debian("trixie", APT_WHOSE_LOCK_IS_TAKEN)
    machine.has_python()
    done = machine.setup("run", TAKEN="2")
    assert (done.returncode, machine.lines) == (2, ["apt-get update"] * 3)
    assert "  | E: no such host\n" in done.stderr


def test_another_apt_get_is_waited_for_so_long_and_no_longer(machine: Machine) -> None:
    machine.has_debian("trixie", APT_WHOSE_LOCK_IS_TAKEN)
    machine.has_python()
    done = machine.setup("run", TAKEN="99", PENSTOCK_SETUP_APT_WAIT="0")
    assert (done.returncode, machine.lines) == (2, ["apt-get update"])
    assert "It is held by process 7 (apt-get)" in done.stderr


def test_what_no_package_brings_is_told(machine: Machine) -> None:
    machine.has_debian("trixie")
    machine.has_python()
    done = machine.setup("run")
    assert (done.returncode, "no package source here has Java 17 or newer" in done.stderr) == (2, True)


def test_a_set_up_that_has_nothing_to_do_says_so(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("17.0.1")
    first = machine.setup("run")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[0] == "setup: creating .venv with Python 3.11"
    assert first.stdout.splitlines()[-1] == "setup: done"
    pinned, own = (line for line in machine.lines if line.startswith("pip"))
    assert pinned == "pip -m pip install --no-deps --require-hashes -r .venv/.penstock-pins"
    assert (machine.clone / ".venv" / ".penstock-pins").read_text() == "one==1\n", "the tools of tests stay away"
    assert own == "pip -m pip install --no-build-isolation -c constraints.txt -e .[mysql,postgres]"
    asked = len(machine.lines)
    assert machine.setup("run").stdout == "setup: up to date\n"
    assert len(machine.lines) == asked
    (machine.clone / "constraints-hashes.txt").write_text("one==2\n")
    assert machine.setup("run").stdout.splitlines()[-1] == "setup: done", "other pins are installed"


def test_pip_that_fails_leaves_no_mark_and_the_next_set_up_goes_on(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("17.0.1")
    good = (machine.bin / "pip").read_text()
    machine.has("pip", "echo 'ERROR: no route'; exit 1")
    done = machine.setup("run")
    assert done.returncode == 2
    assert "  | ERROR: no route\n" in done.stderr
    assert "setup: error: pip could not install the pinned packages\n" in done.stderr
    (machine.bin / "pip").write_text(good)
    assert machine.setup("run").stdout.splitlines()[-1] == "setup: done"


def test_files_that_are_not_on_record_are_told_and_refused_where_that_is_wished(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("17.0.1")
    good = (machine.bin / "pip").read_text()
    (machine.bin / "pip").write_text(good + 'case "$*" in *--require-hashes*) false ;; esac\n')
    assert machine.setup("run", PENSTOCK_REQUIRE_HASHES="1").returncode == 2
    assert "setup: WARNING: packages here are not those of constraints-hashes.txt" in machine.setup("run").stdout


@pytest.mark.parametrize(
    ("version", "fits"), [("1.8.0_292", False), ("11.0.2", False), ("17.0.1", True), ("21-ea", True), ("25", True), ("", False)]
)
def test_a_java_is_known_by_its_version(machine: Machine, version: str, fits: bool) -> None:
    machine.has_java(version)
    assert machine.asks("find_java_home") == (str(machine.clone.parent / "usr" / "lib" / "jvm" / "java") if fits else "")


def test_a_java_home_that_does_not_fit_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    machine.has_java("21.0.1")
    machine.has_java("11.0.1", tmp_path / "old")
    machine.has_java("25", tmp_path / "new")
    assert machine.asks("find_java_home", JAVA_HOME=str(tmp_path / "old")) == str(tmp_path / "usr" / "lib" / "jvm" / "java")
    assert machine.asks("find_java_home", JAVA_HOME=str(tmp_path / "new")) == str(tmp_path / "new")


def test_a_package_that_others_only_mention_is_no_candidate(machine: Machine) -> None:
    machine.has("apt-cache", 'echo "$2:"; echo "  Installed: (none)"; echo "  Candidate: (none)"')
    assert machine.asks("candidate openjdk-17-jre-headless") == ""
    machine.has_debian("trixie")
    assert machine.asks("first_candidate openjdk-17-jre-headless openjdk-21-jre-headless") == "openjdk-21-jre-headless"


@pytest.mark.parametrize(
    ("folder", "given", "holds"),
    [("Übung eins", "C", "C.UTF-8"), ("Übung eins", "POSIX", "C.UTF-8"), ("plain", "C", "C"), ("Übung eins", "de_DE.UTF-8", "de_DE.UTF-8")],
)
def test_a_folder_with_umlauts_is_read_by_a_python_that_knows_utf_8(tmp_path: Path, folder: str, given: str, holds: str) -> None:
    (tmp_path / folder).mkdir()
    assert Machine(tmp_path / folder).asks('echo "$LC_ALL"', LC_ALL=given) == holds


def interrupt(machine: Machine, number: signal.Signals, wait_for: str, after: Callable[[], None] = lambda: None) -> tuple[int, str, str]:
    """Signal set-up's whole process group, as a terminal does, once a program wrote a line down; return how it ended."""
    # Whoever runs the tests in the background may have had signals ignored, and a shell cannot trap those.
    command = ["/usr/bin/env", "--default-signal", str(machine.clone / "scripts" / "setup.sh"), "run"]
    with subprocess.Popen(
        command,
        env=machine.environment,
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        while wait_for not in machine.lines:
            assert child.poll() is None
            SystemClock().wait(NEVER, 0.05)
        os.killpg(child.pid, number)
        after()
        out, err = child.communicate(timeout=120)
        return child.returncode, out, err


def pipe_has_no_reader(pipe: Path) -> bool:
    """Return whether whoever had a pipe open is gone, or goes within a minute."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + 60
    while clock.monotonic_s() < deadline_s:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            return error.errno == errno.ENXIO
        clock.wait(NEVER, 0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_what_pip_does(machine: Machine, number: signal.Signals) -> None:
    machine.has_python()
    machine.has_java("17.0.1")
    # Nobody ever writes into the pipe, so it waits until it is killed.
    machine.has("pip", 'mkfifo "$HOME/never"; exec 9<>"$HOME/never"; told waiting; read -r -u 9')
    code, _, err = interrupt(machine, number, "waiting")
    assert (code, err) == (130, "setup: interrupted\n")
    # Whoever reads the pipe lets a writer in; nobody may be left who does.
    assert pipe_has_no_reader(machine.clone.parent / "never")
    assert not (machine.clone / ".venv" / ".penstock-setup").exists()


def test_ctrl_c_ends_compilers_and_archivers(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("17.0.1")
    python = (machine.bin / "python3").read_text()
    # Each waits for a pipe of its own, into which nobody writes; the second one to come says so.
    waits = 'mkfifo "$HOME/$2"; exec 9<>"$HOME/$2"; told "$2"; [ "$(wc -l <"$HOME/told")" != 4 ] || told both; read -r -u 9'
    (machine.bin / "python3").write_text(python.replace('*) told "python $*"', f"*) {waits}"))
    code, _, err = interrupt(machine, signal.SIGINT, "both")
    assert (code, err) == (130, "setup: interrupted\n")
    assert pipe_has_no_reader(machine.clone.parent / "penstock.server.warm_kernels")
    assert pipe_has_no_reader(machine.clone.parent / "penstock.feed.spark.class_archive")
    assert not (machine.clone / ".venv" / ".penstock-setup").exists()


def test_ctrl_c_lets_apt_finish_and_services_may_start_again(machine: Machine) -> None:
    machine.has_debian(
        "trixie",
        'told "apt-get $1"; [ "$1" = update ] || { mkfifo "$HOME/go"; told installing; cat "$HOME/go" >/dev/null; told installed; }',
    )
    machine.has_python()

    def go_on() -> None:
        (machine.clone.parent / "go").write_text("on")

    code, out, err = interrupt(machine, signal.SIGINT, "installing", go_on)
    assert (code, err) == (130, "setup: interrupted\n")
    assert out.splitlines()[-1] == "setup: apt-get is let finish; then this ends"
    assert machine.lines[-1] == "installed"
    assert not machine.policy.exists()


def test_ctrl_c_ends_the_wait_for_another_apt_get(machine: Machine) -> None:
    machine.has_debian("trixie", APT_WHOSE_LOCK_IS_TAKEN)
    machine.has_python()
    code, _, err = interrupt(machine, signal.SIGINT, "apt-get update")
    assert (code, err) == (130, "setup: interrupted\n")


SHELLCHECK = Path(sys.executable).parent / "shellcheck"


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck comes with make setup-test")
def test_shellcheck_finds_nothing() -> None:
    scripts = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
    done = subprocess.run(
        [SHELLCHECK, "-x", "--severity=warning", *scripts], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "")
