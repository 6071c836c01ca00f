"""Every command that a hint, an example or a page names exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from penstock.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]
PLACES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
_MARKED = re.compile(r"`penstock (?P<rest>[^`\n]+)`|\b(?:see|run|with|by) penstock (?P<prose>[a-z][a-z -]*[a-z])", re.IGNORECASE)
_LINE = re.compile(r"^\s*(?:\$ |PENSTOCK_[A-Z_]+=\S+ )?penstock (?P<rest>\S.*)$", re.MULTILINE)
_END = re.compile(r"\s{2,}|\s[|>&<#]|\s\(|;\s|…| \.\.\.|\\$")
_WORD = re.compile(r"[a-z][a-z-]*")


def named() -> dict[str, str]:
    """Return each command that is named, with a place where."""
    found: dict[str, str] = {}
    for file in PLACES:
        if "design" in file.parts or file.name == "benchmarks.md":
            continue
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [match["rest"] for match in _LINE.finditer(text)] if file.suffix == ".md" or "cli" in file.parts else []
        marked = [match["rest"] for match in _MARKED.finditer(text) if match["rest"]]
        for rest in [*lines, *marked]:
            found.setdefault(_END.split(rest, maxsplit=1)[0].strip(), str(file.relative_to(ROOT)))
        for match in _MARKED.finditer(text):
            if match["prose"] and match["prose"].split()[0] in cli.list_commands(click.Context(cli)):
                found.setdefault(_verbs_only(match["prose"]), str(file.relative_to(ROOT)))
    return found


def _verbs_only(prose: str) -> str:
    """Return the beginning of a text that names verbs."""
    command: click.Command | None = cli
    words: list[str] = []
    for word in prose.split():
        inner = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
        words.append(word)
    return " ".join(words)


def problem(text: str) -> str | None:
    """Return what is wrong with a command, None where nothing is."""
    try:
        words = shlex.split(text.replace("[", "").replace("]", "").replace("'", '"') if text.count("'") % 2 else text)
    except ValueError:
        words = text.split()
    command: click.Command = cli
    options = {name for option in cli.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("-") and word != "-":
            if name not in options and not (len(name) > 2 and name[:2] in options and not name.startswith("--")):
                return f"no option {name}"
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                # A value of an option, or a word for any of the verbs.
                if not _WORD.fullmatch(word) or command.invoke_without_command:
                    continue
                return f"no verb {word}"
            command = inner
            options |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return None


NAMED = named()


@pytest.mark.parametrize("text", sorted(NAMED))
def test_a_command_that_is_named_exists(text: str) -> None:
    assert problem(text) is None, f"penstock {text} in {NAMED[text]}"


def test_what_does_not_exist_is_found() -> None:
    assert problem("feed restart orders") == "no verb restart"
    assert problem("run --from mysql://x") == "no option --from"
    assert problem("feed show orders --output json") is None
    assert len(NAMED) > 100
