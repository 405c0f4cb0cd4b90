"""The bundled text is clean prose."""

from __future__ import annotations

import pytest

from threeml_core.data.bundled import bundled_articles, clean_line


def test_bundled_text_is_clean_prose() -> None:
    pytest.importorskip("gensim")
    articles = dict(bundled_articles())
    assert len(articles) > 95 and "Albedo" in articles and "Abraham Lincoln" in articles
    text = "\n".join(articles.values())
    assert len(text.split()) > 380_000
    for mark in ("'''", "''", "[[", "]]", "{{", "}}", "<ref", "File:", "|", "==", "&nbsp;"):
        assert mark not in text, mark


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  '''Autism''' is a ''developmental'' disorder , seen early in life. ",
            "Autism is a developmental disorder, seen early in life.",
        ),
        (
            "Aristotle (; , 384-322 BC) was a philosopher born in Stagira.",
            "Aristotle (384-322 BC) was a philosopher born in Stagira.",
        ),
        ("* a list item that is quite long, but it is a list item.", ""),
        ("File:Kabylie.jpg|The range in snow, seen from the north side.", ""),
        ("A caption without a full stop that is more than forty long", ""),
        ("Short.", ""),
    ],
)
def test_clean_line(line: str, expected: str) -> None:
    assert clean_line(line) == expected
