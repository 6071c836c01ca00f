"""The words of statements, whatever stands in quotes and comments."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.ddl.tokens import literal, quoted, statements, tokens, unquoted

ODD = st.text(st.sampled_from("ab`'\"\\;-#/*! \n,(é"), max_size=12)


def test_comments_are_no_words_and_those_that_the_server_executes_are() -> None:
    assert tokens("a /* b */ c -- d\n e # f\n /*!50100 g */ /*M!100 h*/ --i") == ["a", "c", "e", "g", "h", "-", "-", "i"]
    assert tokens("a --\nb") == ["a", "b"]


def test_a_quote_inside_a_text_is_doubled_or_escaped() -> None:
    assert tokens(r"""'it''s' 'it\'s' `a``b` "x" """) == ["'it''s'", r"'it\'s'", "`a``b`", '"x"']
    assert tokens(r"'a\' b 'c'", backslash_escapes=False) == [r"'a\'", "b", "'c'"]


def test_semicolons_divide_statements_outside_of_quotes_and_comments_only() -> None:
    text = "CREATE TABLE `a;b` (x VARCHAR(9) DEFAULT ';''') ; ; /* ; */ CREATE TABLE c (y INT) -- ;\n;"
    assert statements(text) == ["CREATE TABLE `a;b` (x VARCHAR(9) DEFAULT ';''')", "/* ; */ CREATE TABLE c (y INT) -- ;"]


@given(ODD, ODD)
def test_what_is_quoted_is_one_word_and_comes_back(name: str, text: str) -> None:
    assert tokens(f"x {quoted(name)} {literal(text)} y") == ["x", quoted(name), literal(text), "y"]
    assert unquoted(quoted(name)) == name
    assert statements(f"{quoted(name)};{literal(text)}") == [quoted(name), literal(text)]
