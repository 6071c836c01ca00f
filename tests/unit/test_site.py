"""The site of the documentation builds without a warning, loads nothing from elsewhere, and its pages of reference are current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
from pages import calls, commands, links, settings

from penstock.cli.main import cli
from penstock.config.server_tree import ServerConfig
from penstock.config.tree import FeedConfig
from penstock.settings.loader import dotted_keys, known_keys, load, merge, nested

ROOT = Path(__file__).resolve().parents[2]


class Loads(HTMLParser):
    """What a browser loads for a page by itself: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source", "video"}:
            self.addresses.append(given.get("src") or "")
        if tag == "link":
            self.addresses.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {"index.html", "why.html", "tutorial.html", "reading-files.html", "running.html"} <= {page.name for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "```" not in text, page.name
        loads = Loads()
        loads.feed(text)
        assert [one for one in loads.addresses if re.match(r"(https?:)?//", one)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_the_pages_of_reference_are_current() -> None:
    assert commands.PAGE.read_text(encoding="utf-8") == commands.render()
    assert calls.PAGE.read_text(encoding="utf-8") == calls.render()


def test_the_page_of_settings_is_current_and_has_every_key_and_default() -> None:
    text = settings.PAGE.read_text(encoding="utf-8")
    assert text == settings.render()
    given = {"Server": {"source": "dataserver://127.0.0.1:1"}, "Feed": {"name": "f", "tables": ["a.b"], "sink": {"uri": "null:"}}}
    kinds: dict[str, Any] = {"Server": ServerConfig, "Feed": FeedConfig}
    for title, needed in given.items():
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = dict(re.findall(r"^\| `([^`]+)` \| .*? \| (.*?) \|$", section, re.MULTILINE))
        assert {key.partition(".")[0] for key in rows} == set(known_keys(kinds[title]))
        assert title == "Feed" or sorted(rows) == sorted(dotted_keys(ServerConfig))
        for key, default in rows.items():
            if default.startswith("`"):
                assert load(kinds[title], merge(needed, nested(key, default.strip("`")))) == load(kinds[title], needed), key


def test_the_page_of_commands_has_every_command_and_option() -> None:
    text = commands.PAGE.read_text(encoding="utf-8")
    for path, command in commands.tree(cli, ("penstock",)):
        section = re.split(r"^##", text.partition(f"# {' '.join(path)}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        assert section, path
        shown = {name for option in command.params if isinstance(option, click.Option) and not option.hidden for name in option.opts}
        assert [name for name in shown if f"`{name}`" not in section] == [], path


def test_pictures_are_small_and_shown() -> None:
    linked = set(re.findall(r"\]\(pictures/([^)]+)\)", (ROOT / "docs" / "page.md").read_text(encoding="utf-8")))
    files = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()}
    assert linked == files.keys()
    assert {f"{name}-{colours}.png" for name in ("feeds", "feed", "servers") for colours in ("light", "dark")} == files.keys()
    assert {name: size for name, size in files.items() if not 10_000 < size < 150_000} == {}


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("a.md", "[x](b.md) [y](../src/c.py#L1)", "[x](b.md) y"),
        ("in/a.md", "[x](../b.md) [y](../../c.py) ![p](../../p.png)", "[x](../b.md) y ![p](../../p.png)"),
        ("a.md", "[x](https://example.com/../y)", "[x](https://example.com/../y)"),
    ],
)
def test_links_to_files_of_the_repository_become_text(page: str, text: str, shown: str) -> None:
    assert links.without_files(page, text) == shown
