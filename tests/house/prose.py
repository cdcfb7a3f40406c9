"""Measures the language of documents and comments: lengths of sentences, comments that open without a noun, words to avoid.

    .venv/bin/python tests/house/prose.py [--list] [PATH...]

Without PATH it measures the whole checkout and ends with status 1 if a limit is exceeded. With --list it prints each fault with
its file and line. No maintained tool measures these: Vale, for example, knows no median and does not read comments of CUDA sources.
"""

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, String

ROOT = Path(__file__).resolve().parents[2]
LONG = 30  # words: a longer sentence is a fault
LEXERS = {".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".py": "python", ".cmake": "cmake", "CMakeLists.txt": "cmake"}
ADMONITIONS = re.compile(r"\{(?:note|tip|warning|important|seealso|admonition|dropdown)\}")
SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"'*]))(?<!\d\.)\s+(?=[\"'(`*\[]*[A-Z0-9])|\n{2,}")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|etc|cf|al|Fig|Sec|Eq|no|approx)\.$")

# A comment that opens with a clause like these does not name its subject.
NOUNLESS = re.compile(r"(?:what|of|where|as|those|which|who|whose|whatever|whoever)\b", re.IGNORECASE)

# The style guide's words to avoid. Exceptions are the standard uses of a word: "there is no", "is no longer", "cross-entropy".
AVOIDED = {
    "tell": r"\b(?:tells?|told|telling)\b",
    "own (pronoun)": r"\b(?:its|their|our|his|whose) own(?=\s*(?:[.,;:)]|$| (?:is|are|in|of|and|or|to)\b))",
    "so many": r"\bso many\b",
    "in the place of": r"\bin the place of\b",
    "of which": r"\bof which\b",
    "nobody, whoever": r"\b(?:nobody|whoever)\b",
    "as X has it": r"\bas [\w.' ]{1,30} has it\b",
    "by hand of": r"\bby hand of\b",
    "made anew": r"\banew\b",
    "comes to": r"\bcomes? to (?!\w+ or\b)",
    "some or other": r"\bsome \w+ or other\b",
    "is no": r"(?<!there )(?<!which )\b(?:is|are) no (?!longer|more|less|better|worse|larger|smaller|faster|slower|higher)",
    "crosses": r"\bcross(?:es|ed|ing)?\b(?!-)",
    "owed": r"\bowed\b",
    "yardstick": r"\byardsticks?\b",
    "toucher": r"\btouchers?\b",
    "settle": r"\bsettle[sd]?\b",
    "outlook": r"\boutlook\b",
}
AVOIDED_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in AVOIDED.items()}


@dataclass
class Text:
    """A run of prose: a paragraph of a document, or a comment."""

    path: Path
    line: int
    text: str
    heading: bool = False


@dataclass
class Prose:
    """The measures of a list of texts."""

    sentences: list[tuple[Text, str, int]] = field(default_factory=list)  # with the number of words
    openings: list[Text] = field(default_factory=list)
    avoided: list[tuple[Text, str]] = field(default_factory=list)
    texts: int = 0
    words: int = 0

    def median(self) -> float:
        return statistics.median([words for *_, words in self.sentences] or [0])

    def long(self) -> list[tuple[Text, str, int]]:
        return [sentence for sentence in self.sentences if sentence[2] > LONG]

    def long_share(self) -> float:
        return len(self.long()) / max(1, len(self.sentences))

    def opening_share(self) -> float:
        return len(self.openings) / max(1, self.texts)

    def avoided_rate(self) -> float:
        """Returns the number of words to avoid per thousand words."""
        return 1000 * len(self.avoided) / max(1, self.words)


def sentences(text: str) -> list[str]:
    found = [""]
    for part in SENTENCE_END.split(text):
        found[-1] += part
        if ABBREVIATION.search(part):
            found[-1] += " "
        else:
            found.append("")
    return [each.strip() for each in found if len(words_of(each)) >= 3]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_](?:[\w'’.,/×%-]*[\w%])?", text)


def markdown(path: Path, text: str, first_line: int = 0) -> Iterator[Text]:
    """Yields paragraphs, items and headings. Inline code counts as one word; tables and code blocks are left out."""
    heading = table = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        heading = token.type == "heading_open" or (heading and token.type != "heading_close")
        table = token.type == "table_open" or (table and token.type != "table_close")
        line = first_line + (token.map or [0])[0] + 1
        if token.type == "fence" and ADMONITIONS.match(token.info):
            yield from markdown(path, re.sub(r"^:\w+:.*$", "", token.content, flags=re.MULTILINE), line)
        elif token.type == "inline" and not table:
            yield Text(path, line, "".join(map(plain, token.children or [])), heading)


def plain(token: Token) -> str:
    if token.type == "code_inline":
        return "code"
    return " " if "break" in token.type else token.content


def comments(path: Path, source: str) -> Iterator[Text]:
    """Yields comments and docstrings. Consecutive lines of // or # are one comment if they start in the same column."""
    lexer = get_lexer_by_name(LEXERS.get(path.name) or LEXERS.get(path.suffix) or "bash")
    lines: list[str] = []
    start = last = column = 0
    for offset, kind, value in lexer.get_tokens_unprocessed(source):
        docstring = kind in String.Doc
        if not docstring and (kind not in Comment or kind in Comment.Preproc or kind in Comment.Hashbang or kind in Comment.PreprocFile):
            continue
        line, at = source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)
        if lines and (docstring or line != last + 1 or at != column):
            yield Text(path, start, "\n".join(lines))
            lines = []
        start = start if lines else line
        lines.append(clean(value))
        last, column = line + value.rstrip("\n").count("\n"), at
    if lines:
        yield Text(path, start, "\n".join(lines))


def clean(comment: str) -> str:
    text = re.sub(r"^[ru]*(\"\"\"|''')|(\"\"\"|''')$|^/\*+|\*+/$", "", comment.strip())
    return re.sub(r"^\s*(?:///?<?|#+|\*)[ \t]?", "", text, flags=re.MULTILINE).strip()


def without_tags(comment: str) -> str:
    """Splits the tags of Doxygen and Google style into separate paragraphs, and removes code."""
    text = re.sub(r"@code.*?@endcode|```.*?```", "", comment, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*>>> .*?(?=\n\s*\n|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)  # examples, with their output
    text = re.sub(r"^[ \t]*- ", "\n\n", text, flags=re.MULTILINE)  # items of a list
    text = re.sub(r"^\s*@(?:t?param(?:\[\w+\])?|throws)\s+\S+|^\s*@\w+", "\n\n", text, flags=re.MULTILINE)
    return re.sub(r"^\s{2,}(\w+): ", "\n\n", text, flags=re.MULTILINE)


def is_prose(text: Text) -> bool:
    return bool(words_of(text.text)) and not re.match(r"NOLINT|ctest:|noqa|type:|clang-format|shellcheck|ruff:|usage:", text.text)


def measure(texts: Iterator[Text]) -> Prose:
    prose = Prose()
    for text in filter(is_prose, texts):
        prose.texts += 1
        prose.words += len(words_of(text.text))
        if not text.heading:
            prose.sentences += [(text, each, len(words_of(each))) for each in sentences(without_tags(text.text))]
        if NOUNLESS.match(text.text):
            prose.openings.append(text)
        prose.avoided += [(text, f"{name}: '{hit.group().strip()}'") for name, hit in hits(text.text)]
    return prose


def merged(parts: Iterable[Prose]) -> Prose:
    total = Prose()
    for part in parts:
        total.sentences += part.sentences
        total.openings += part.openings
        total.avoided += part.avoided
        total.texts += part.texts
        total.words += part.words
    return total


def hits(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for name, pattern in AVOIDED_PATTERNS.items():
        for hit in pattern.finditer(text):
            yield name, hit


def tracked(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.splitlines() if (root / name).is_file()]


def is_document(path: Path) -> bool:
    return path.suffix == ".md"


def is_source(path: Path) -> bool:
    return path.suffix in LEXERS or path.name in LEXERS or (path.parent.name == "scripts" and not path.suffix)


def documents_of(paths: list[Path]) -> Prose:
    return measure(text for path in paths if is_document(path) for text in markdown(path, path.read_text(encoding="utf-8")))


def comments_of(paths: list[Path]) -> Prose:
    return measure(text for path in paths if is_source(path) for text in comments(path, path.read_text(encoding="utf-8")))


def faults(documents: Prose, comments: Prose) -> list[str]:
    """Returns one line for each limit that is exceeded."""
    checks = [
        (documents.median() <= 16, f"documents: the median sentence has {documents.median():g} words, limit 16"),
        (documents.long_share() <= 0.06, f"documents: {documents.long_share():.1%} of sentences have over {LONG} words, limit 6%"),
        (not [text for text, _ in documents.avoided if text.heading], "documents: a heading has a word to avoid"),
        (not [text for text in documents.openings if text.heading], "documents: a heading opens with a clause without a noun"),
        (documents.avoided_rate() <= 0.3, f"documents: {documents.avoided_rate():.2f} words to avoid in 1,000, limit 0.3"),
        (comments.opening_share() < 0.02, f"comments: {comments.opening_share():.1%} open with a clause without a noun, limit 2%"),
        (comments.avoided_rate() <= 0.3, f"comments: {comments.avoided_rate():.2f} words to avoid in 1,000, limit 0.3"),
    ]
    return [fault for good, fault in checks if not good]


def row(name: str, prose: Prose) -> str:
    return (
        f"{name:<28}{prose.texts:>7}{len(prose.sentences):>11}{prose.median():>8g}{prose.long_share():>9.1%}"
        f"{prose.opening_share():>10.1%}{prose.avoided_rate():>9.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each fault")
    parser.add_argument("path", nargs="*", type=Path, help="files or folders; default: the whole checkout, with the limits checked")
    options = parser.parse_args()
    chosen = [path.resolve() for path in options.path]
    paths = [each for each in tracked(ROOT) if not chosen or any(each.is_relative_to(path) for path in chosen)]
    if not paths:
        parser.error(f"no tracked file in {', '.join(map(str, options.path))}")
    groups: dict[str, list[Path]] = {}
    for path in paths:
        parts = path.relative_to(ROOT).parts
        groups.setdefault(parts[0] if len(parts) > 1 else ".", []).append(path)
    print(f"{'':<28}{'texts':>7}{'sentences':>11}{'median':>8}{f'over {LONG}':>9}{'openings':>10}{'avoided':>9}")
    measured = [(documents_of(group), comments_of(group)) for group in groups.values()]
    for name, parts in zip(groups, measured, strict=True):
        for what, prose in zip(("documents", "comments"), parts, strict=True):
            if prose.texts:
                print(row(f"{name} {what}", prose))
    documents, notes = (merged(parts) for parts in zip(*measured, strict=True))
    print(row("all documents", documents) + "\n" + row("all comments", notes))
    if options.list:
        found = [(text, f"{words} words: {each[:100]}") for prose in (documents, notes) for text, each, words in prose.long()]
        found += [(text, f"opens with '{text.text[:40]}'") for text in notes.openings]
        found += documents.avoided + notes.avoided
        for text, fault in sorted(found, key=lambda each: (str(each[0].path), each[0].line)):
            print(f"{text.path.relative_to(ROOT)}:{text.line}: {' '.join(fault.split())}")
    exceeded = [] if chosen else faults(documents, notes)
    for fault in exceeded:
        print(fault, file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
