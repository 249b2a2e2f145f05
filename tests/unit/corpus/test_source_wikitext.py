"""MediaWiki markup to plain text."""

from __future__ import annotations

import pytest

from train_jobs.corpus.sources.wikitext import Namespaces, plain_text

GERMAN = Namespaces(frozenset({"file", "image", "media", "datei"}), frozenset({"category", "kategorie"}))


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        # emphasis and links
        ("'''A''' is ''b'' and '''''c'''''. It's, l'''''amour''''.", "A is b and c. It's, lamour'."),
        ("A ''''''''b''''' c", "A '''b c"),
        ("[[A]]s, [[B|c]], [[:Category:D]], [[:File:E.jpg|e]] [[F#G]] [[H|]]", "As, c, Category:D, e F#G H"),
        ("[[A|b|c]] x [[de:Anarchismus]] y [[wikt:word|a word]] [[zh-min-nan:Z]]", "b|c x y a word"),
        ("See [http://x.org the site] [https://y.org], [//z z] [mailto:a@b.c us].", "See the site, z us."),
        ("A [sic] b [1] c", "A [sic] b [1] c"),
        # files and categories with captions
        ("A[[File:x.jpg|thumb|Of [[B|b]] and [[C]]]] d", "A d"),
        ("A[[Image:x.jpg|See [sic]]] d", "A d"),
        ("A [[Bild:x.jpg|thumb]][[Datei:y|mini]] [[Kategorie:Z]]b [[category:Y]]", "A b"),
        ("[[Apollo 11: the film]] and [[2001: A Space Odyssey|2001]]", "Apollo 11: the film and 2001"),
        # templates
        ("A{{b}} c {{d|{{e|f}}|{{{g|}}}}} h {{{1}}} i", "A c h i"),
        ("{{Infobox\n| a = {{b}}\n| c = [[d]]\n}}\nText {{x|\n{|\n|a\n|}}} here.", "Text here."),
        ("A {{ b c }} d }} e {{ f", "A d }} e {{ f"),
        ("A {{b {{c}} d", "A {{b d"),
        ("{{{{{a}}}|b}} c", "c"),
        ("{{{{a}}}} b {{{{{{c}}}}}} d", "b d"),
        # tables
        ("A\n{| class=x\n! h\n|-\n| c || [[d]]\n{|\n| inner\n|}\n| e\n|}\nB", "A\nB"),
        (":{|\n| x\n|}\nB", "B"),
        ("A\n{|\n| open\n|-\nB", "A\nB"),
        ("A<table><tr><td>x</td></tr></table> b", "A b"),
        # references, comments, tags
        ('A.<ref name="a/b">x {{cite}} </ref> B<ref name=c /> C<REF>d\n\ne</REF>.', "A. B C."),
        ("A <!-- b\n\nc --> d <!-- open", "A d"),
        ("A<br />b <span style='x'>c</span> <blockquote>d</blockquote> m<sup>2</sup>", "A\nb c\nd\nm2"),
        ("A <math>x < y [[</math> b <code>c</code> <gallery>\nF.jpg|x\n</gallery>d", "A b c d"),
        ("A <ref>open b <math>x</math> c. {{c}}", "A open b c."),
        ("1 < 2 and 3 > 2, <3", "1 < 2 and 3 > 2, <3"),
        # literal text and entities
        ("<nowiki>[[a]] ''b'' {{c}} <br></nowiki> &lt;d&gt; &amp;amp; 5&nbsp;km &#8211; AT&T", None),
        ("<nowiki># not a list</nowiki>", "# not a list"),
        # not prose
        ("== H ==\nA\n=== I ===\n* l\n# m\n: n\n; o\n----\nB\n", "A\nB"),
        ("__NOTOC__A__FORCETOC__ __init__", "A"),
        ("...\n—\nA.", "A."),
        # remains of templates
        ("A ({{lang|x}}; {{IPA}}) is ({{b}}, c) d {{e}}, f .", "A is (c) d, f."),
        ("A  b\t c", "A b c"),
        # scripts of one language
        ("-{A}- -{zh-hans:B; zh-hant:C}- -{H|zh-cn:D}- -{R|E}-", "A B E"),
        ("", ""),
        ("{{only}}\n* list", ""),
    ],
)
def test_markup_is_converted_to_text(markup: str, text: str | None) -> None:
    expected = "[[a]] ''b'' {{c}} <br> <d> &amp; 5 km \u2013 AT&T" if text is None else text
    assert plain_text(markup, GERMAN) == expected


def test_localized_links_need_localized_namespaces() -> None:
    assert plain_text("A [[Datei:y|mini]][[Kategorie:Z]]") == "A miniKategorie:Z"
    assert plain_text("A [[Datei:y.png|mini]]") == "A"


@pytest.mark.parametrize(
    "unit",
    ["{{", "}}", "[[", "]]", "<ref>", "<ref name=", "<!--", "{|\n", "'''", "(", "(, ", "-{", "[http://", "&a", "__a"],
)
def test_unclosed_markup_takes_linear_time(unit: str) -> None:
    """This takes a second; with quadratic time it would take an hour."""
    assert plain_text("end\n" + unit * 200_000).startswith("end")
