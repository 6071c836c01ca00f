"""Generates the pages of reference from the code: commands, API, settings, metrics; and the dashboard.

``reference_doc.py`` writes them; ``reference_doc.py --check`` writes nothing and fails when one is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # The calls are those of a server of tests, which no wheel holds.

import generated_page
from pages import calls, commands, dashboard, metrics, settings

if __name__ == "__main__":
    pages = {page.PAGE: page.render for page in (metrics, commands, calls, settings)} | {dashboard.FILE: dashboard.render}
    sys.exit(generated_page.run(__doc__, pages))
