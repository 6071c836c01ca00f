"""Makes ``docs/examples/notebook.ipynb`` from the cells of ``docs/examples/notebook.py``, executed.

What it shows is a run's own output, without what differs between machines: no log lines, no paths, no times of execution.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CELLS = ROOT / "docs" / "examples" / "notebook.py"
NOTEBOOK = CELLS.with_suffix(".ipynb")
CELL_S_MAX = 600


def cells(text: str) -> list[tuple[str, str]]:
    """Return the cells of a file with ``# %%`` marks: ``code`` or ``markdown``, and the content."""
    found = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        mark, _, body = part.partition("\n")
        is_text = "[markdown]" in mark
        found.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()) if is_text else ("code", body.strip()))
    return found


def plain(notebook: Any) -> None:
    """Leave out what is of this machine and this hour."""
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
        if cell.cell_type == "code":
            cell["outputs"] = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook["metadata"] = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def main() -> int:
    """Execute the cells and write the notebook."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook()
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    notebook.cells = [make[kind](content) for kind, content in cells(CELLS.read_text(encoding="utf-8"))]
    NotebookClient(notebook, timeout=CELL_S_MAX, kernel_name="python3").execute()
    plain(notebook)
    NOTEBOOK.write_text(nbformat.writes(notebook).rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
