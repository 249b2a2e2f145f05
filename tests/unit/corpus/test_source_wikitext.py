"""MediaWiki markup to plain text."""

from __future__ import annotations

import pytest

from train_jobs.corpus.sources.wikitext import Namespaces, plain_text

LITERAL = "[[a]] ''b'' {{c}} <br> <d> &amp; 5 km \u2013 AT&T"
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
        ("A {{convert|1300|mi|km}} road, {{cvt|5|to|10|km}}.", "A 1,300 miles road, 5 to 10 kilometres."),
        ("A {{convert|5|km|adj=on}} road of {{convert|1|ft|m|abbr=on}}.", "A 5-kilometre road of 1 ft."),
        (
            "{{convert|6|ft|2|in|abbr=on}}, {{convert|12|st|7|lb|kg}}, a {{convert|5|ft|1|in|adj=on}} {{cvt|9|ft|2}}.",
            "6 ft 2 in, 12 stone 7 pounds, a 5-foot-1-inch 9 feet.",
        ),
        (
            "{{convert|2|\u00d7|3|m}}, {{convert|10|\u00b1|2|km}}, {{convert|5|to(-)|10|km}}, {{convert|1|+|2|km}}.",
            "2 \u00d7 3 metres, 10 \u00b1 2 kilometres, 5\u201310 kilometres, 1 + 2 kilometres.",
        ),
        ("{{convert|1|+1/2|mi}}, {{convert|2+1/4|ft}}, {{convert|1/2|in}}.", "1 1/2 miles, 2 1/4 feet, 1/2 inches."),
        ("A ({{langx|de|b|lit=c}}, {{IPA|de|d}}) {{IPA|/e/}}, {{langx|fr|[[f|g]]}}.", "A (b) /e/, g."),
        ("B ({{lang|grc|\u1f00}}, {{lang-ar|{{big|[[a|b]]}}}}, {{transl|ar|ALA|''c''}})", "B (\u1f00, b, c)"),
        ("{{As of|2010|5|3}} and {{as of|2014|lc=y}}.", "As of 3 May 2010 and as of 2014."),
        ("{{chem|C|''n''|H|2}} ''Eagle''{{'s}} on 15{{nbsp}}May{{snd}}x", "CnH2 Eagle's on 15 May \u2013 x"),
        ("{{val|6.2|e=18|u=C}}, {{frac|1|2}}, {{circa|300}}, {{US$|2 billion}}", None),
        ("At {{Coord|13|19|N|169|9|W|type:event}}. {{coord|1|N|2|E|display=title}}", None),
        ("A{{sfn|B|1995}}.{{citation needed|date=x}} C ({{IPAc-en|a}}; {{respell|B}}).", "A. C."),
        # formulas
        (
            r"If <math>x_i^2 \leq \frac{1}{2}</math>, <math>\sin \alpha</math>.",
            "If x\u1d62\u00b2 \u2264 1/2, sin \u03b1.",
        ),
        (r"So <math>e^{i\pi}, \bar{y} \in \{0,1\}</math> is.", "So e^(i\u03c0), y \u2208 {0,1} is."),
        (r"A <math>\begin{matrix}a\end{matrix}</math> b.", "A b."),
        ("A:\n<math>x = y</math>\nand <math display=block>z</math> b", "A:\nand b"),
        # tables
        ("A\n{| class=x\n! h\n|-\n| c || [[d]]\n{|\n| inner\n|}\n| e\n|}\nB", "A\nB"),
        (":{|\n| x\n|}\nB", "B"),
        ("A\n{|\n| open\n|-\nB", "A\nB"),
        ("A<table><tr><td>x</td></tr></table> b", "A b"),
        # references, comments, tags
        ('A.<ref name="a/b">x {{cite}} </ref> B<ref name=c /> C<REF>d\n\ne</REF>.', "A. B C."),
        ("A <!-- b\n\nc --> d <!-- open", "A d"),
        ("A<br />b <span style='x'>c</span> <blockquote>d</blockquote> m<sup>2</sup>", "A\nb c\nd\nm2"),
        ("A <math>x < y [[</math> b <code>c</code> <gallery>\nF.jpg|x\n</gallery>d", "A x < y [[ b c d"),
        ("A <ref>open b <math>x</math> c. {{c}}", "A open b x c."),
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
        ("A (b, {{c}}; {{d}}) e (f , {{g}}), (h, i).", "A (b) e (f), (h, i)."),
        ("A  b\t c", "A b c"),
        # scripts of one language
        ("-{A}- -{zh-hans:B; zh-hant:C}- -{H|zh-cn:D}- -{R|E}-", "A B E"),
        ("", ""),
        ("{{only}}\n* list", ""),
    ],
)
def test_markup_is_converted_to_text(markup: str, text: str | None) -> None:
    shown = {
        "{{v": "6.2\u00d710\u00b9\u2078 C, 1/2, c. 300, US$2 billion",
        "At ": "At 13\u00b019\u2032N 169\u00b09\u2032W.",
        "<no": LITERAL,
    }
    expected = shown[markup[:3]] if text is None else text
    assert plain_text(markup, GERMAN) == expected


def test_localized_links_need_localized_namespaces() -> None:
    assert plain_text("A [[Datei:y|mini]][[Kategorie:Z]]") == "A miniKategorie:Z"
    assert plain_text("A [[Datei:y.png|mini]]") == "A"


@pytest.mark.parametrize(
    "unit",
    [
        "{{",
        "}}",
        "[[",
        "]]",
        "<ref>",
        "<ref name=",
        "<!--",
        "{|\n",
        "'''",
        "(",
        "(, ",
        "(a, ",
        "(,  ,,",
        "-{",
        "[http://",
        "&a",
        "__a",
        "{{e|",
        "<math>",
        "<math>{",
    ],
)
def test_unclosed_markup_takes_linear_time(unit: str) -> None:
    """This takes a second; with quadratic time it would take an hour."""
    assert plain_text("end\n" + unit * 200_000).startswith("end")
