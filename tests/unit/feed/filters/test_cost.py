"""Patterns that a row can keep busy, told apart from those that it cannot. What Spark's expressions cost: ``spark/filters``."""

from __future__ import annotations

import pytest

from penstock.feed.filters.cost import brackets_deep, pattern_problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"a*a*a*a*b",
        r".*.*.*.*=",
        r"(a+)+\1b",
        r"(?<n>a+)+\k<n>b",
        r"(\w*)(\s*)(\w*)(\d*)$",
        r"[a-z]*[^\]b]*[]]*x?.{2,}$",
        r"\Qa*a*\E.*.*?.*\d*x",
        r"(?:a*)(?=b*)c*(?<name>d*)(?i)e",
    ],
)
def test_patterns_that_may_take_for_ever_are_found(pattern: str) -> None:
    assert pattern_problem(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
        r"^(\d+,)*\d+$",
        r"(a+)+$",
        r"a*a*a*b a*a*a*",
        r"a*+a*+a*+a*+b",
        r"\Qa*a*a*a*\E",
        r"a\*a\*a\*a\*",
        r"[a*+][b*+][c*+][d*+]",
        r"(foo|bar)+|.*x|.*y|.*z|.*w",
        r"\d{4}-\d{2}-\d{2}T\d+:\d+:\d+\.\d+Z",
        r"\\1 costs 1",
        r"a?b?c?d?e?",
        r"[unclosed*+",
        "trailing\\",
    ],
)
def test_patterns_that_people_use_are_let_through(pattern: str) -> None:
    assert pattern_problem(pattern) == ""


def test_how_deep_brackets_are() -> None:
    assert [brackets_deep(text) for text in ("", "a", "(a) + (b)", "((a))", ")(")] == [0, 0, 1, 2, 0]
