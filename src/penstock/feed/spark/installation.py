"""The installation as one archive: interpreter, standard library, packages and compiled kernels, to run in any directory of any machine.

What ``spark.archives`` ships: each executor unpacks it beside itself and starts ``bin/python`` from there, a script that finds everything
relative to itself. Left out is what only a driver or a developer needs: Spark's own jars (an executor is a Spark already), tests, tools.
Invariants: no path of this machine is in it, and the same installation gives the same names in the same order, without owners. A machine
that uses it has the same processor architecture and a C library at least as new. Runs where ``penstock package`` is called.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import penstock
from penstock.model.errors import PenstockError

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = f"lib/{_PYTHON}"
_PACKAGES = f"{_LIBRARY}/site-packages"
_EXTRAS = frozenset({"mysql", "postgres"})
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)""")
_NOT_STANDARD = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"})
_NOT_OF_SPARK = frozenset({"jars", "examples", "data", "licenses", "bin", "sbin", "work", "python", "testing", "tests"})
_NOT_OF_ANY = frozenset({"tests", "include"})
_C_LIBRARY = re.compile(r"(?:linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|libanl|libnss_\w+)\b.*")
_FOUND = re.compile(r"=> (?P<path>/\S+)")
_STAMPS = "stamps.json"

_START = f"""#!/bin/sh
# Python from wherever this archive was unpacked.
here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 1
LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{_PACKAGES}"
export LD_LIBRARY_PATH PYTHONPATH
[ -e "$here/.stamped" ] || "$here/bin/{_PYTHON}" -I -S "$here/bin/stamp.py" "$here" || exit 1
exec "$here/bin/{_PYTHON}" "$@"
"""

# Compiled code counts only while its source has the time that it had when it was compiled, and who unpacks rounds times or leaves them out.
_STAMP = f"""import json, os, sys
here = sys.argv[1]
with open(os.path.join(here, "{_STAMPS}")) as file:
    for name, stamp in json.load(file).items():
        os.utime(os.path.join(here, name), ns=(stamp, stamp))
open(os.path.join(here, ".stamped"), "w").close()
"""


@dataclass(frozen=True)
class Packed:
    """What an archive holds."""

    files: int
    nbytes: int
    unpacked_nbytes: int
    distributions: tuple[str, ...]


def pack(output: Path, level: int) -> Packed:
    """Write the archive; it has its name only when it is whole."""
    distributions = needed_distributions()
    names = tuple(sorted(f"{d.metadata['Name']} {d.version}" for d in distributions))
    files = installed_files(distributions)
    texts = started_by(files, names)
    partial = output.with_name(f".{output.name}.partial")
    try:
        # What another user put there under this name must not be followed.
        partial.unlink(missing_ok=True)
        with (
            open(partial, "xb") as raw,
            gzip.GzipFile("", "wb", level, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            unpacked = _write(archive, files, texts)
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PenstockError("CONFIG_INVALID", f"{output}: {error.strerror or error}") from None
    return Packed(len(files) + len(texts), output.stat().st_size, unpacked, names)


def installed_files(distributions: Iterable[importlib.metadata.Distribution]) -> dict[str, Path]:
    """Return what goes into the archive, by its name there: the interpreter, distributions, and this package as it is now."""
    files = dict(_interpreter_files())
    for distribution in distributions:
        files |= _distribution_files(distribution)
    return files | _own_files()


def started_by(files: Mapping[str, Path], distributions: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return the texts, with their modes, by which the files of an archive are started wherever it is unpacked."""
    stamps = {name: file.stat().st_mtime_ns for name, file in files.items() if name.endswith(".py")}
    about: dict[str, Any] = {"penstock": penstock.__version__, "python": platform.python_version(), "machine": platform.machine()}
    about |= {"c-library": " ".join(platform.libc_ver()), "distributions": list(distributions)}
    return {
        "bin/python": (_START, 0o755),
        "bin/stamp.py": (_STAMP, 0o644),
        _STAMPS: (json.dumps(dict(sorted(stamps.items()))), 0o644),
        "package.json": (json.dumps(about, indent=1) + "\n", 0o644),
    }


def needed_distributions() -> list[importlib.metadata.Distribution]:
    """Return what is installed of everything that this package needs, itself and what its sources need included."""
    installed: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        installed.setdefault(_normal(distribution.metadata["Name"]), distribution)
    if "penstock" not in installed:
        raise PenstockError("MISSING_DEPENDENCY", "penstock itself is not installed here, only found on a path", "Install it with pip.")
    chosen: dict[str, set[str]] = {}
    waiting = [("penstock", set(_EXTRAS))]
    while waiting:
        name, extras = waiting.pop()
        if name not in installed or (name in chosen and extras <= chosen[name]):
            continue
        chosen[name] = chosen.get(name, set()) | extras
        for requirement in installed[name].requires or []:
            text, _, marker = requirement.partition(";")
            wanted = _EXTRA.search(marker)
            parsed = _REQUIREMENT.match(text)
            if parsed is not None and (wanted is None or wanted[1] in chosen[name]):
                waiting.append((_normal(parsed["name"]), {e.strip() for e in (parsed["extras"] or "").split(",") if e.strip()}))
    return [installed[name] for name in sorted(chosen)]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _interpreter_files() -> Iterator[tuple[str, Path]]:
    """Yield the interpreter, its standard library, and the libraries that both need and not every machine has."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    yield f"bin/{_PYTHON}", program
    standard = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    for file in _walk(standard, _NOT_STANDARD):
        relative = file.relative_to(standard)
        if not relative.parts[0].startswith("config-"):
            yield f"{_LIBRARY}/{relative.as_posix()}", file
    modules = sorted(file for file in (standard / "lib-dynload").glob("*.so") if "tkinter" not in file.name)
    for library in _libraries([program, *modules]):
        yield f"lib/{library.name}", library


def _libraries(programs: Iterable[Path]) -> list[Path]:
    if shutil.which("ldd") is None:
        raise PenstockError("MISSING_DEPENDENCY", "ldd is not on this machine", "Make the archive on a Linux with the GNU C library.")
    shown = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    found = {Path(line["path"]) for line in _FOUND.finditer(shown)}
    return sorted(path for path in found if not _C_LIBRARY.fullmatch(path.name))


def _distribution_files(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    """Return the files of a distribution that lie among the packages, with the compiled ones beside them."""
    left_out = _NOT_OF_SPARK if distribution.metadata["Name"] == "pyspark" else _NOT_OF_ANY
    found = {}
    for entry in distribution.files or ():
        parts = PurePosixPath(entry).parts
        if ".." in parts or parts[0] == "/" or "__pycache__" in parts or entry.suffix == ".pth":
            continue
        if len(parts) > 1 and parts[1] in left_out:
            continue
        file = Path(str(distribution.locate_file(entry)))
        if file.is_file():
            found[f"{_PACKAGES}/{entry.as_posix()}"] = file
            compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
            if file.suffix == ".py" and compiled.is_file():
                found[f"{_PACKAGES}/{entry.parent.as_posix()}/__pycache__/{compiled.name}".replace("/./", "/")] = compiled
    return found


def _own_files() -> dict[str, Path]:
    """Return this package's files wherever they are: an installation that is edited has only a name for them among the others."""
    root = Path(penstock.__file__).resolve().parent
    return {f"{_PACKAGES}/penstock/{file.relative_to(root).as_posix()}": file for file in _walk(root, frozenset())}


def _walk(root: Path, left_out: frozenset[str]) -> Iterator[Path]:
    for directory, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in left_out)
        yield from (Path(directory, name) for name in sorted(names) if Path(directory, name).is_file())


def _write(archive: tarfile.TarFile, files: Mapping[str, Path], texts: Mapping[str, tuple[str, int]]) -> int:
    total = 0
    for name in sorted({*files, *texts}):
        entry = tarfile.TarInfo(name)
        if name in texts:
            content, entry.mode = texts[name][0].encode(), texts[name][1]
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        else:
            status = files[name].stat()
            entry.size, entry.mtime = status.st_size, status.st_mtime_ns / 1e9
            entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
            with open(files[name], "rb") as source:
                archive.addfile(entry, source)
        total += entry.size
    return total
