"""What the scripts that generate pages share: write them, or with ``--check`` write nothing and fail when one is not current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def run(doc: str | None, render: Mapping[Path, Callable[[], str]]) -> int:
    """Do what the command line asks for; return the exit code. A script with one page can be told where it is."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true", help="fail when a page is not current; write nothing")
    if len(render) == 1:
        parser.add_argument("--page", type=Path, help="where the page is")
    options = parser.parse_args()
    pages = {getattr(options, "page", None) or path: text() for path, text in render.items()}
    if not options.check:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path.name for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if stale:
        print(f"{', '.join(stale)} is not current; run: make docs", file=sys.stderr)
    return 1 if stale else 0
