"""Checks that documents and comments stay within the limits of prose.py, and that prose.py finds each kind of fault."""

from pathlib import Path

import prose
import pytest
from trees import ROOT

PLAIN = "Workers send rows to their owners. Owners add them. Every worker receives the sums."


def of_document(text):
    return prose.measure(prose.markdown(Path("a.md"), text))


def of_source(text, name="a.cpp"):
    return prose.measure(prose.comments(Path(name), text))


def test_our_documents_and_comments():
    paths = prose.tracked(ROOT)
    documents, comments = prose.documents_of(paths), prose.comments_of(paths)
    assert prose.faults(documents, comments) == []
    assert len(documents.sentences) > 1000
    assert len(comments.sentences) > 5000


def test_the_readme_fits_on_one_page():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


def test_plain_text_has_no_fault():
    for good in (of_document(PLAIN), of_source(f"// {PLAIN}\n")):
        assert prose.faults(good, good) == []
        assert len(good.sentences) == 3


def test_counts_words_and_sentences():
    text = "# A heading of words\n\nOne `code here` counts, e.g. 1.5 GB. Two\nlines are one.\n\n- An item is one\n"
    text += "\n| a table | is none |\n|---|---|\n\n```\nNor is code.\n```\n"
    assert [words for *_, words in of_document(text).sentences] == [6, 4, 4]
    note = "```{note}\nAn admonition is read.\n```\n"
    assert [words for *_, words in of_document(note).sentences] == [4]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("word " * 17 + "end.", "documents: the median sentence has 18 words"),
        (PLAIN + " Long " + "word " * 30 + "end.", "documents: 25.0% of sentences have over 30 words"),
        ("# Rows that are owed\n\n" + PLAIN, "documents: a heading has a word to avoid"),
        ("# What is sent\n\n" + PLAIN, "documents: a heading opens with a clause without a noun"),
        (PLAIN + " It tells rows to owners.", "documents: 52.63 words to avoid in 1,000"),
    ],
)
def test_finds_a_fault_of_a_document(text, fault):
    assert any(each.startswith(fault) for each in prose.faults(of_document(text), of_source("")))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.cpp", "int a;  // of each\n"),
        ("a.cu", "/// Where work runs.\nvoid f();\n"),
        ("a.py", 'def f():\n    """Who touched most."""\n'),
        ("CMakeLists.txt", "# As the others.\n"),
    ],
)
def test_finds_a_comment_that_opens_without_a_noun(name, text):
    found = of_source(text, name)
    assert len(found.openings) == 1
    assert any(fault.startswith("comments: 100.0% open") for fault in prose.faults(of_document(""), found))


def test_finds_a_comment_with_a_word_to_avoid():
    found = of_source("// Rows cross the network.\n// Nobody waits.\n\n// Another comment.\n")
    assert [text.line for text, _ in found.avoided] == [1, 1]
    assert found.texts == 2
    assert any("words to avoid" in fault for fault in prose.faults(of_document(""), found))


@pytest.mark.parametrize("text", ["There is no limit.", "It is no longer used.", "Cross-entropy is a loss.", "Their own rows stay."])
def test_allows_the_standard_uses_of_a_word(text):
    assert of_document(text).avoided == []
