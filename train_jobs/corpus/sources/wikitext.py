"""Converter from MediaWiki markup to plain text: passages, without lists, tables, headings and references.

BERT was trained on such text ("we extract only the text passages and ignore lists, tables, and headers", Devlin et al.
2019, section 3.1). Formulas and templates that show text within a sentence are rendered by rules (see
`inline_templates`). All other templates are dropped, since their content is not in the page; wikiextractor does the
same without a table of templates. Every step is linear in the length of the page, even if markup is nested or not
closed. Increase `fingerprints.EXTRACTOR` when the text of any markup changes.

mwparserfromhell is not used: it processes 1.5 MB/s of markup, this converter 12.9 (docs/corpus.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from train_jobs.corpus.sources.inline_templates import (
    LONGEST_TEMPLATE,
    formula_text,
    has_rule,
    template_name,
    template_text,
)
from train_jobs.corpus.sources.text_formats import unescaped


class Namespaces(NamedTuple):
    """Lower-case prefixes of links that show no text, such as `file`, `datei`, `category` and `kategorie`."""

    files: frozenset[str]
    """Prefixes of images and other media."""
    categories: frozenset[str]
    """Prefixes of categories."""


ENGLISH = Namespaces(frozenset({"file", "image", "media"}), frozenset({"category"}))  # valid in wikis of every language

_DROPPED = (
    "ref|references|math|chem|ce|score|timeline|gallery|imagemap|syntaxhighlight|source|graph|hiero|table|templatedata"
    "|templatestyles|mapframe|maplink|inputbox|categorytree|indicator|section"
)
_FORMULAS = frozenset({"math", "chem", "ce"})
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(rf"<(/?)({_DROPPED}|nowiki)\b([^<>]*)>", re.IGNORECASE)
_OTHER_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_BREAK = re.compile(r"<br\b[^<>]*>|</?(?:p|div|blockquote|poem|center)\b[^<>]*>", re.IGNORECASE)
_BRACES = re.compile(r"\{{2,}|\}{2,}")
_TABLE = re.compile(r"^[ \t:]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_BRACKETS = re.compile(r"\[\[|\]\](?:\](?!\]))?")
_EXTERNAL = re.compile(r"\[(?:(?:https?|ftp|news|irc)://|//|mailto:)[^\s\[\]]*[ \t]*([^\[\]\n]*)\]", re.IGNORECASE)
_APOSTROPHES = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[^\W\d_]{3,}__")
_FILE_NAME = re.compile(r":.*\.(?:jpe?g|png|svg|gif|tiff?|webp|og[agv]|web[mp]|pdf|djvu|midi?|wav|mp3|flac|stl)$", re.I)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]{2,12})?|simple")
_EMPTY_BRACKETS = re.compile(r"\((?:[\s,;:/-]|\bor\b)*\)")
_OPEN_BRACKET = re.compile(r"\(\s*(?:[,;]\s*)+")
_CLOSED_BRACKET = re.compile(r"(?<![\s,;])[\s,;]*[,;]\s+\)")  # the first condition keeps it linear
_BEFORE_POINT = re.compile(r" (?=[,.;](?: |$))")
_SPACES = re.compile(r" [ \t\u00a0]+|[\t\u00a0]+ *")
_LITERAL = str.maketrans({sign: f"&#{ord(sign)};" for sign in "[]{}|'<>=*#:;!_-"})
_NO_PROSE = tuple("*#:;|=")  # first characters of lists, definitions, remains of tables, headings


def plain_text(markup: str, namespaces: Namespaces = ENGLISH) -> str:
    """Return the text of a page, one paragraph per line; it may be empty.

    Args:
        markup: wikitext of the page.
        namespaces: namespaces of its wiki.
    """
    # The order matters: comments and `nowiki` can contain any markup, and templates can contain parts of tables.
    text = _COMMENT.sub("", markup) if "<!--" in markup else markup
    text = _remove_spans(text, _find_tags(text))
    text = _remove_spans(text, _find_templates(text))
    text = _remove_spans(text, _find_tables(text))
    if "-{" in text:
        text = _VARIANT.sub(_variant, text)
    text = _EXTERNAL.sub(r"\1", text)
    text = _replace_links(text, namespaces)
    text = _APOSTROPHES.sub(_emphasis, text)
    if "__" in text:
        text = _SWITCH.sub("", text)
    if "<" in text:
        text = _OTHER_TAG.sub("", _BREAK.sub("\n", text))
    return "\n".join(_paragraphs(text))


class _Span(NamedTuple):
    """Characters to remove, and their replacement."""

    start: int
    stop: int
    replacement: str = ""


def _remove_spans(text: str, spans: list[_Span]) -> str:
    if not spans:
        return text
    kept = []
    at = 0
    for span in spans:
        kept += [text[at : span.start], span.replacement]
        at = span.stop
    kept.append(text[at:])
    return "".join(kept)


def _find_tags(text: str) -> list[_Span]:
    """Find tags whose content is not prose; the content of `nowiki` is kept as entities."""
    tags = list(_TAG.finditer(text)) if "<" in text else []
    # A tag without an end must not remove the rest of the page. Its last end is known before the scan, which keeps
    # the scan linear.
    last_end = {tag[2].lower(): tag.start() for tag in tags if tag[1]}
    spans: list[_Span] = []
    opened: re.Match[str] | None = None
    for tag in tags:
        name = tag[2].lower()
        if opened is not None:
            if tag[1] and name == opened[2].lower():
                spans.append(_Span(opened.start(), tag.end(), _content(text, opened, tag)))
                opened = None
        elif tag[1] or tag[3].endswith("/") or last_end.get(name, -1) < tag.start():
            spans.append(_Span(tag.start(), tag.end()))
        else:
            opened = tag
    return spans


def _content(text: str, opened: re.Match[str], closed: re.Match[str]) -> str:
    """Return the text of a tag whose content is no prose: literal text, and formulas within a line of prose."""
    name, content = opened[2].lower(), text[opened.end() : closed.start()]
    if name == "nowiki":
        return content.translate(_LITERAL)
    if name not in _FORMULAS or "block" in opened[3]:
        return ""
    before, behind = text[max(opened.start() - 1, 0) : opened.start()], text[closed.end() : closed.end() + 1]
    is_line = before in {"", "\n"} and behind in {"", "\n"}
    return "" if is_line else formula_text(content).translate(_LITERAL)


def _find_templates(text: str) -> list[_Span]:
    """Find the outermost `{{...}}` and `{{{...}}}`, with the text that they show; unmatched braces are kept."""
    spans: list[_Span] = []
    opened: list[tuple[int, int]] = []  # position, and number of unmatched braces
    for run in _BRACES.finditer(text):
        start, stop = run.span()
        if text[start] == "{":
            opened.append((start, stop - start))
            continue
        if opened and opened[-1][1] == 2 and (stop - start) % 2 and text[start - 1] == "|":
            start += 1  # `|}}}`: the first brace ends a table
        while opened and stop - start >= 2:
            place, waiting = opened.pop()
            count = stop - start
            taken = waiting if waiting == count else min(waiting, count, 3)
            start += taken
            if waiting - taken >= 2:
                opened.append((place, waiting - taken))
            _enclose(spans, _Span(place + waiting - taken, start))
    return [span._replace(replacement=_template_text(text[span.start : span.stop])) for span in spans]


def _template_text(template: str) -> str:
    """Return the text that an outermost template shows within a sentence."""
    name = template_name(template) if len(template) <= LONGEST_TEMPLATE else ""
    if not has_rule(name):
        return ""
    inner = template[2:-2]
    return template_text(name, "{{" + _remove_spans(inner, _find_templates(inner)) + "}}")


def _find_tables(text: str) -> list[_Span]:
    """Find the outermost `{| ... |}`."""
    spans: list[_Span] = []
    opened: list[int] = []
    for mark in _TABLE.finditer(text) if "{|" in text else ():
        if mark[0].endswith("{|"):
            opened.append(mark.start())
        elif opened:
            _enclose(spans, _Span(opened.pop(), mark.end()))
    return spans


def _enclose(spans: list[_Span], outer: _Span) -> None:
    """Add a span and remove those inside it."""
    while spans and spans[-1].start >= outer.start:
        spans.pop()
    spans.append(outer)


def _variant(match: re.Match[str]) -> str:
    """Return the first variant of `-{zh-hans:A; zh-hant:B}-`; a conversion rule alone shows nothing."""
    flags, bar, content = match[1].rpartition("|")
    if bar and set(flags.replace(" ", "")) & set("HT-"):
        return ""
    first = content.partition(";")[0]
    return (first.partition(":")[2] or first).strip()


def _replace_links(text: str, namespaces: Namespaces) -> str:
    """Replace every `[[link]]` by the text that it shows."""
    # A stack, because the caption of an image can contain links: a regular expression cannot match nested brackets.
    stack: list[list[str]] = [[]]
    at = 0
    for mark in _BRACKETS.finditer(text):
        stack[-1].append(text[at : mark.start()])
        at = mark.end()
        if mark[0] == "[[":
            stack.append([])
            continue
        rest = mark[0][2:]
        if len(stack) > 1:
            content = "".join(stack.pop())
            if rest and content.count("[") > content.count("]"):
                content, rest = content + rest, ""
            stack[-1].append(_link_text(content, namespaces))
        stack[-1].append(rest)
    stack[-1].append(text[at:])
    return "".join(text for level in stack for text in level)


def _link_text(content: str, namespaces: Namespaces) -> str:
    target, bar, label = content.partition("|")
    if target.startswith(":"):
        return label if bar else target[1:]
    prefix, colon, _ = target.partition(":")
    if colon:
        space = prefix.strip().lower().replace("_", " ")
        if space in namespaces.files or space in namespaces.categories or _FILE_NAME.search(target.strip()):
            return ""
        if not bar and _LANGUAGE.fullmatch(space):
            return ""
    return label if bar and label else target


def _emphasis(match: re.Match[str]) -> str:
    """Remove the apostrophes that mark italics (2), bold (3) and both (5); keep the others of a run."""
    count = len(match[0])
    return "'" * (count - 5 if count > 5 else count == 4)


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        prose = line.strip()
        if not prose or prose.startswith(_NO_PROSE) or prose.startswith(("{|", "----")):
            continue
        prose = unescaped(prose)
        if "(" in prose:
            prose = _CLOSED_BRACKET.sub(")", _OPEN_BRACKET.sub("(", _EMPTY_BRACKETS.sub("", prose)))
        prose = _BEFORE_POINT.sub("", _SPACES.sub(" ", prose)).strip()
        if any(map(str.isalnum, prose)):
            yield prose
