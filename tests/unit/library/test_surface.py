"""The public surface: exactly what docs/library.md lists, typed, and free until it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "library.md"


def test_the_surface_is_what_the_page_lists() -> None:
    table = re.findall(r"^\| `penstock\.(\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(table)) == sorted(penstock.__all__)
    assert dir(penstock) == sorted(penstock.__all__)
    assert {name for name in penstock.__all__ if getattr(penstock, name) is None} == set()
    assert penstock.spark.__all__ == ["register"]
    with pytest.raises(AttributeError, match="no attribute 'Feed'"):
        penstock.Feed  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import penstock; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['__future__', 'penstock']"


def test_a_type_checker_knows_it() -> None:
    stub = (
        (ROOT / "src" / "penstock" / "__init__.py")
        .read_text(encoding="utf-8")
        .partition("if TYPE_CHECKING:")[2]
        .partition("__version__")[0]
    )
    named = {name.strip() for line in re.findall(r"import (.+)", stub) for name in line.split(",")}
    assert named - {"Any"} == set(penstock.__all__) - {"__version__"}
