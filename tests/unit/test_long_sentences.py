import long_sentences


def test_sentences_of_the_documentation_are_short() -> None:
    found = [s for page in long_sentences.pages() for s in long_sentences.long_sentences(page.read_text(encoding="utf-8"))]
    assert len(found) <= long_sentences.LEFT_MAX, "\n".join(found)


def test_texts_are_paragraphs_items_and_cells_without_code() -> None:
    words = " ".join(["word"] * 24)
    page = f"""# Title

{words}
end. {words} `code of
several words` end: {words} end

- {words}
  goes on in the next line
- short
9 {words} end; short

| {words} x | {words} x y |
|---|---|

```
{words} {words}
```
"""
    assert [len(s.split()) for s in long_sentences.long_sentences(page)] == [26, 30, 27, 26]
