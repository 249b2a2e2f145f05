"""Our wikitext converter compared with mwparserfromhell: speed, and equality of the remaining words.

    pip install mwparserfromhell==0.7.2
    python -m benchmarks.wikitext DUMP.xml.bz2 ... [--extracted FOLDER]

The library leaves more than passages: captions, tables, lists and headings. So the agreement is with what it leaves of
the same things: its own nodes of templates, tables, references, files and categories are removed, and the lines of
lists and headings. FOLDER holds output of wikiextractor; articles with a title of the dumps, of whatever date, are
compared with it too. Agreement is F1 over the words of each article, as a bag.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import mwparserfromhell

from benchmarks.machine import describe, spread
from train_jobs.artifacts.text_files import source_files
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.mediawiki import Article, read_articles
from train_jobs.corpus.sources.streams import Piece, ignore
from train_jobs.corpus.sources.text_formats import unescaped
from train_jobs.corpus.sources.text_parts import plan_parts, read_part
from train_jobs.corpus.sources.wikitext import plain_text

ROUNDS = 3
NO_PROSE_TAGS = {
    "ref",
    "references",
    "math",
    "gallery",
    "table",
    "ul",
    "ol",
    "dl",
    "timeline",
    "score",
    "syntaxhighlight",
}
NO_PROSE_LINES = ("*", "#", ":", ";", "=", "|", "!", "{|")
HIDDEN_LINK = re.compile(r"(file|image|category):|[a-z]{2,3}:", re.IGNORECASE)
WORD = re.compile(r"\w+")
EXTRACTED = re.compile(r'<doc id="[^"]*"[^>]*title="([^"]*)">\n.*?\n(.*?)</doc>', re.DOTALL)


def ours(article: Article) -> str:
    """Return the text that the corpus uses."""
    return plain_text(article.markup, article.namespaces)


def library(article: Article) -> str:
    """Return all text that mwparserfromhell keeps."""
    return str(mwparserfromhell.parse(article.markup).strip_code())


def library_passages(article: Article) -> str:
    """Return the passages that the library keeps."""
    code = mwparserfromhell.parse(article.markup)
    unwanted = [
        *(tag for tag in code.filter_tags() if str(tag.tag).lower() in NO_PROSE_TAGS),
        *(link for link in code.filter_wikilinks() if HIDDEN_LINK.match(str(link.title).strip())),
        *code.filter_templates(),
    ]
    for node in unwanted:
        try:
            code.remove(node)
        except ValueError:  # it went with one that it was in
            continue
    # Parsed again after the removal, since templates and tables can leave markup that was nested in them.
    lines = [line for line in str(code).split("\n") if not line.strip().startswith(NO_PROSE_LINES)]
    return str(mwparserfromhell.parse("\n".join(lines)).strip_code())


def megabytes_per_second(function: Callable[[], object], size: int) -> str:
    """Return median and range of MB per processor second over several rounds."""
    speeds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        function()
        speeds.append(size / 1e6 / (time.process_time() - began))
    return spread(speeds)


def agreement(pairs: Iterable[tuple[str, str]]) -> str:
    """Return precision, recall and F1 of the first text's words, with the second text as gold."""
    both = left = right = 0
    for one, other in pairs:
        words, wanted = Counter(WORD.findall(one)), Counter(WORD.findall(other))
        both, left, right = both + (words & wanted).total(), left + words.total(), right + wanted.total()
    return f"precision {both / left:.4f}, recall {both / right:.4f}, F1 {2 * both / (left + right):.4f}"


def main() -> None:
    """Print speeds and agreements."""
    parser = argparse.ArgumentParser(description="wikitext to text, compared with mwparserfromhell")
    parser.add_argument("dumps", nargs="+")
    parser.add_argument("--extracted", type=Path)
    arguments = parser.parse_args()
    source = SourceConfig(path=arguments.dumps, format="wikipedia")
    pieces = [Piece(str(file.path), file.compression) for file in source_files(source)]
    articles = [article for piece in pieces for article in read_articles(piece, ignore)]
    size = sum(len(article.markup.encode()) for article in articles)
    print(f"{describe('mwparserfromhell')}\n{len(articles)} articles; MB/s of their {size / 1e6:.1f} MB on one core\n")
    parts = plan_parts([source])
    whole = megabytes_per_second(lambda: [list(read_part([source], part)) for part in parts], size)
    print(f"dump to text, all of it     {whole}")
    for name, strip in (("ours", ours), ("library", library), ("library, passages", library_passages)):
        speed = megabytes_per_second(lambda strip=strip: [strip(article) for article in articles], size)  # type: ignore[misc]
        print(f"{name:<26}  {speed}")
    print(f"\nwith the library's passages  {agreement((ours(a), library_passages(a)) for a in articles)}")
    if arguments.extracted:
        files = [path for path in arguments.extracted.rglob("wiki_*") if path.is_file()]
        extracted = {title: text for path in files for title, text in EXTRACTED.findall(path.read_text())}
        found = [(ours(a), unescaped(extracted[a.title])) for a in articles if a.title in extracted]
        print(
            f"with wikiextractor, {len(found)} of them  {agreement(found)}"
            if found
            else "no article of wikiextractor's"
        )


if __name__ == "__main__":
    main()
