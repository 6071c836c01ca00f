"""wheel_check.py WHEEL: whether a wheel holds every file that ships and nothing else.

What ships is every file below ``src/penstock`` but caches; tests, twins and benchmarks stand outside of it. ``declared`` is what
``pyproject.toml`` makes of that: a file that no pattern names is noticed before anybody builds. The exit code is 1 where a wheel differs.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = {".py", ".pyi"}


def shipping(source: Path) -> set[str]:
    """Return the files below ``source`` that must be in the wheel, as it names them."""
    files = (file for file in source.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
    return {file.relative_to(source.parent).as_posix() for file in files}


def declared(root: Path) -> set[str]:
    """Return the files that setuptools puts into the wheel by the project's declaration."""
    source = root / "src" / "penstock"
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["penstock"]
    packages = [folder for folder in (source, *source.rglob("*/")) if _is_package(folder, source)]
    code = {file for folder in packages for file in folder.iterdir() if file.suffix in CODE}
    named = {file for pattern in patterns for file in source.glob(pattern)}
    return {file.relative_to(source.parent).as_posix() for file in code | named}


def _is_package(folder: Path, source: Path) -> bool:
    while folder != source.parent:
        if not (folder / "__init__.py").is_file():
            return False
        folder = folder.parent
    return True


def held(wheel: Path) -> set[str]:
    """Return the files of a wheel but those that describe it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not re.match(r"penstock-[^/]+\.dist-info/", name)}


def main(wheel: Path) -> int:
    """Compare a wheel with what ships; return the exit code."""
    wanted, found = shipping(ROOT / "src" / "penstock"), held(wheel)
    for what, names in (("missing", wanted - found), ("not ours", found - wanted)):
        for name in sorted(names):
            print(f"{wheel.name}: {what}: {name}", file=sys.stderr)
    if wanted == found:
        print(f"{wheel.name}: {len(found)} files, {wheel.stat().st_size:,} B")
    return 0 if wanted == found else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
