"""A hook of mkdocs, which makes pages that are read in the repository fit for a site.

A link out of ``docs/`` leads to a file of the repository, which a site does not hold, so its text stays without it; whether the file exists
is checked by ``tests/unit/test_docs.py``. The name of a block of code, by which tests find it, goes. Runs while the site is built.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```\w+) (?!title=).*$", re.MULTILINE)


def leaves(page: str, link: str) -> bool:
    """Return whether a link on a page, both as paths, leads out of the folder of pages."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link)).startswith("..")


def without_files(page: str, text: str) -> str:
    """Return the text of a page with links out of the folder as plain text."""
    return _LINK.sub(lambda found: found[1] if leaves(page, found[2]) else found[0], text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page as the site has it, which mkdocs asks for."""
    return _FENCE.sub(r"\1", without_files(page.file.src_uri, markdown))
