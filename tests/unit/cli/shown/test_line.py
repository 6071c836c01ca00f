from __future__ import annotations

import unicodedata

import pytest

from penstock.cli.shown.line import say, visible

# Unicode's own classes: control characters, half surrogates, and what turns the direction of text.
OBEYED = {
    chr(code)
    for code in range(0x11000)
    if unicodedata.category(chr(code)) in {"Cc", "Cs"}
    or unicodedata.bidirectional(chr(code)) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
}


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    everything = "".join(map(chr, range(0x11000)))
    assert OBEYED & set(visible(everything)) == {"\t", "\n"}
    plain = "".join(c for c in everything[:0x2000] if c not in OBEYED and c not in "\u200e\u200f")
    assert visible(plain) == plain


def test_a_name_that_would_set_the_title_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    say("t\x1b]0;pwned\x07 \u202egpj.exe")
    assert capsys.readouterr().out == "t\\x1b]0;pwned\\x07 \\u202egpj.exe\n"
