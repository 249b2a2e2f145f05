"""Text of templates and formulas in the middle of a sentence, as Wikipedia shows them.

Dropping `{{convert|1300|mi|km}}` or `<math>x</math>` leaves "a length of" without the length. The rules here cover the
inline templates that are the most common in a dump of English Wikipedia, among those that show text. Notes, flags and
pronunciations (`sfn`, `citation needed`, `IPAc-en`, `IPA|de|...`) are dropped, as are templates that compute from other
pages or today's date. Raise `fingerprints.EXTRACTOR` when the text of any markup changes.
"""

from __future__ import annotations

# ruff: noqa: RUF001  # signs of mathematics
import re
from calendar import month_name
from collections.abc import Callable
from typing import NamedTuple

LONGEST_TEMPLATE = 600  # characters; longer ones are boxes and tables, and nested ones would take quadratic time
LONGEST_FORMULA = 300  # characters; longer ones are no part of a sentence

_NAME = re.compile(r"\{\{\s*([^|{}\n:]+?)\s*(?=[|}:])")
_SEPARATOR = re.compile(r"\|(?![^\[\]]*\]\])")
_NAMED = re.compile(r"\s*([A-Za-z][\w -]{0,20}|\d)\s*=")
_NUMBER = re.compile(r"[-+\u2212]?[\d,.]+(?:[/+][\d/]+)?|\d+(?:e[-+]?\d+)?")
_MIXED = re.compile(r"(\d+)\+(\d+/\d+)")  # a whole number and a fraction
_PROPER = re.compile(r"\+\d+/\d+")  # the fraction, as a value of its own
_GAUGE = re.compile(r"(\d+(?:\.\d+)?)\s*(mm|ft|in)")


class Arguments(NamedTuple):
    """Arguments of a template."""

    values: list[str]
    """Values without a name, in order."""
    named: dict[str, str]

    def value(self, index: int) -> str:
        """Return a value; empty if there are fewer."""
        return self.values[index] if index < len(self.values) else ""


Renderer = Callable[[Arguments], str]


def template_name(template: str) -> str:
    """Return the name of a template such as `{{Lang|fr|mot}}`, in lower case; empty if it is computed."""
    match = _NAME.match(template) if template.startswith("{{") and not template.startswith("{{{") else None
    return match[1].lower().replace("_", " ") if match else ""


def template_text(name: str, template: str) -> str:
    """Return the text that a template shows; empty if there is no rule for it.

    Args:
        name: see `template_name`.
        template: its markup, in which no other template is left.
    """
    if (renderer := _renderer(name)) is None:
        return ""
    start = _NAME.match(template)
    content = template[start.end() + 1 : -2] if start else ""
    values: list[str] = []
    named: dict[str, str] = {}
    for argument in _SEPARATOR.split(content) if content else ():
        if match := _NAMED.match(argument):
            named[match[1].strip()] = argument[match.end() :].strip()
        else:
            values.append(argument.strip())
    for number in ("1", "2", "3"):
        if number in named and len(values) == int(number) - 1:
            values.append(named[number])
    return renderer(Arguments(values, named))


def has_rule(name: str) -> bool:
    """Return whether there is a rule for templates of a name."""
    return _renderer(name) is not None


def _renderer(name: str) -> Renderer | None:
    if name.startswith("lang-"):
        return _first
    return _RENDERERS.get(name)


def _constant(text: str) -> Renderer:
    return lambda _: text


def _first(arguments: Arguments) -> str:
    return arguments.value(0)


def _second(arguments: Arguments) -> str:
    return arguments.value(1)


def _last(arguments: Arguments) -> str:
    return arguments.values[-1] if arguments.values else ""


def _joined(arguments: Arguments) -> str:
    return "".join(arguments.values)


def _before(sign: str) -> Renderer:
    return lambda arguments: f"{sign}{arguments.value(0)}"


_UNITS = {
    "mi": ("mile", "miles"),
    "km": ("kilometre", "kilometres"),
    "m": ("metre", "metres"),
    "cm": ("centimetre", "centimetres"),
    "mm": ("millimetre", "millimetres"),
    "ft": ("foot", "feet"),
    "in": ("inch", "inches"),
    "yd": ("yard", "yards"),
    "nmi": ("nautical mile", "nautical miles"),
    "sqmi": ("square mile", "square miles"),
    "km2": ("square kilometre", "square kilometres"),
    "m2": ("square metre", "square metres"),
    "sqft": ("square foot", "square feet"),
    "acre": ("acre", "acres"),
    "ha": ("hectare", "hectares"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "st": ("stone", "stone"),
    "t": ("tonne", "tonnes"),
    "ST": ("short ton", "short tons"),
    "LT": ("long ton", "long tons"),
    "L": ("litre", "litres"),
    "l": ("litre", "litres"),
    "gal": ("gallon", "gallons"),
    "USgal": ("US gallon", "US gallons"),
    "hp": ("horsepower", "horsepower"),
    "kn": ("knot", "knots"),
    "C": ("\u00b0C", "\u00b0C"),
    "F": ("\u00b0F", "\u00b0F"),
    "mph": ("miles per hour", "miles per hour"),
    "km/h": ("kilometres per hour", "kilometres per hour"),
}
_COMPOUND = (("mi", "yd", "ft", "in"), ("st", "lb", "oz"))
"""Units that are written together, the largest first, as in 6 ft 2 in."""
_RANGES = {
    **dict.fromkeys(("-", "\u2013", "to(-)", "and(-)"), "\u2013"),
    **{word: f" {word} " for word in ("to", "to about", "and", "or", "by", "+", "\u00b1", "\u00d7")},
    "x": " by ",
    "xx": " \u00d7 ",
    "+/-": " \u00b1 ",
}


def _convert(arguments: Arguments) -> str:
    """Return the given quantity; the converted one is left out."""
    values = list(arguments.values)
    text = _grouped(values.pop(0)) if values else ""
    if values and _PROPER.fullmatch(values[0]):
        text = _grouped(text + values.pop(0))
    last = text
    while len(values) > 1 and values[0] in _RANGES:
        last = _grouped(values[1])
        text += _RANGES[values[0]] + last
        values = values[2:]
    if not values or not text:
        return text
    quantities = [_quantity(text, last, values[0], arguments.named)]
    while len(values) > 2 and _NUMBER.fullmatch(values[1]) and _is_part(values[2], values[0]):
        number, values = _grouped(values[1]), values[2:]
        quantities.append(_quantity(number, number, values[0], arguments.named))
    return ("-" if arguments.named.get("adj") == "on" else " ").join(quantities)


def _quantity(text: str, last: str, symbol: str, named: dict[str, str]) -> str:
    """Return numbers with their unit.

    Args:
        text: the numbers.
        last: the last of them.
        symbol: symbol of the unit.
        named: named arguments of `{{convert}}`.
    """
    singular, plural = _UNITS.get(symbol, (symbol, symbol))
    if named.get("adj") == "on":
        return f"{text}-{singular}"
    if named.get("abbr") in {"on", "in"}:
        return f"{text} {plural if symbol in 'CF' else symbol}"
    return f"{text} {singular if last == '1' else plural}"


def _is_part(unit: str, whole: str) -> bool:
    """Return whether a unit may follow a larger one in a compound quantity."""
    return any(unit in units[units.index(whole) + 1 :] for units in _COMPOUND if whole in units)


def _grouped(number: str) -> str:
    """Return a number with commas between thousands, or with its fraction, as `{{convert}}` writes it."""
    if mixed := _MIXED.fullmatch(number):
        return f"{mixed[1]} {mixed[2]}"
    whole, point, decimals = number.partition(".")
    return f"{int(whole):,}{point}{decimals}" if whole.isascii() and whole.isdigit() and len(whole) > 3 else number


def _as_of(arguments: Arguments) -> str:
    named = arguments.named
    if "alt" in named:
        return named["alt"]
    year, month, day = (arguments.value(index) for index in range(3))
    if month.isdigit() and 1 <= int(month) <= 12:
        month = month_name[int(month)]
    word = "since" if "since" in named else "as of"
    date = " ".join(part for part in (day, month, year) if part)
    return f"{word if 'lc' in named else word.capitalize()} {date}"


def _fraction(arguments: Arguments) -> str:
    values = arguments.values
    if len(values) == 3:
        return f"{values[0]} {values[1]}/{values[2]}"
    return "/".join(values) if len(values) == 2 else f"1/{arguments.value(0)}"


def _value(arguments: Arguments) -> str:
    named = arguments.named
    power = f"\u00d710{superscript(named['e'])}" if "e" in named else ""
    unit = named.get("u", named.get("ul", ""))
    return f"{_grouped(arguments.value(0))}{power}{' ' + unit if unit else ''}"


def _power_of_ten(arguments: Arguments) -> str:
    return f"\u00d710{superscript(arguments.value(0))}" if arguments.values else ""


def _pronunciation(arguments: Arguments) -> str:
    """Return the transcription of `{{IPA}}`, except after a language, where it is a pronunciation."""
    return arguments.value(0) if len(arguments.values) < 2 else ""


def _circa(arguments: Arguments) -> str:
    return " \u2013 ".join(f"c. {value}" for value in arguments.values) or "c."


def _nihongo(arguments: Arguments) -> str:
    more = ", ".join(value for value in arguments.values[1:3] if value)
    return f"{arguments.value(0)} ({more})" if more else arguments.value(0)


def _link(arguments: Arguments) -> str:
    """Return the title of `{{ill}}`, which once came after the language."""
    first, second = arguments.value(0), arguments.value(1)
    old = re.fullmatch(r"[a-z]{2,3}", first) and second and not re.fullmatch(r"[a-z]{2,3}", second)
    return arguments.named.get("lt") or (second if old else first)


def _ship(prefix: str) -> Renderer:
    def render(arguments: Arguments) -> str:
        number = f" ({arguments.value(1)})" if len(arguments.values) == 2 and arguments.value(1) else ""
        return f"{prefix} {arguments.value(0)}{number}"

    return render


def _coordinates(arguments: Arguments) -> str:
    if arguments.named.get("display", "inline") == "title":
        return ""
    text, signs = "", iter("\u00b0\u2032\u2033")
    for value in arguments.values:
        if value in {"N", "S", "E", "W"}:
            text += value + (" " if value in "NS" else "")
            signs = iter("\u00b0\u2032\u2033")
        elif _NUMBER.fullmatch(value):
            text += value + next(signs, "")
        else:
            break
    return text.strip()


def _gauge(arguments: Arguments) -> str:
    match = _GAUGE.fullmatch(arguments.value(0))
    return f"{match[1]} {match[2]}" if match else arguments.value(0)


def _music(arguments: Arguments) -> str:
    return {"flat": "\u266d", "b": "\u266d", "sharp": "\u266f", "natural": "\u266e"}.get(arguments.value(0), "")


def _old_style_date(arguments: Arguments) -> str:
    return f"{arguments.value(0)} &#91;O.S. {arguments.value(2)}&#93; {arguments.value(1)}".strip()


def _named_alike(names: str, renderer: Renderer) -> dict[str, Renderer]:
    return dict.fromkeys(names.split("|"), renderer)


_QUOTE = "&#39;"  # an apostrophe that marks no italics
_RENDERERS: dict[str, Renderer] = {
    **_named_alike("convert|cvt", _convert),
    **_named_alike("lang|langx|rtl-lang|script", _second),
    **_named_alike("transl|transliteration", _last),
    **_named_alike("nowrap|nobr|small|smaller|big|large|larger|em|strong|center|sc|sc2|smallcaps|nq|vr", _first),
    **_named_alike("vanchor|visible anchor|abbr|tooltip|linktext|math|mvar|sup|sub|formatnum|nobold|noitalic", _first),
    **_named_alike("ipa", _pronunciation),
    **_named_alike("angbr|angle bracket", lambda arguments: f"\u27e8{arguments.value(0)}\u27e9"),
    **_named_alike("as of|as of?", _as_of),
    **_named_alike("chem|chem2|ce", _joined),
    **_named_alike("nihongo", _nihongo),
    **_named_alike("ill|interlanguage link|link-interwiki", _link),
    **_named_alike("val", _value),
    **_named_alike("e|esp", _power_of_ten),
    **_named_alike("frac|sfrac|fraction", _fraction),
    **_named_alike("circa|c.|ca.", _circa),
    **_named_alike("reign|r.", lambda arguments: "r. " + "\u2013".join(arguments.values)),
    **_named_alike("coord", _coordinates),
    **_named_alike("railgauge|track gauge", _gauge),
    **_named_alike("music", _music),
    **_named_alike("oldstyledate", _old_style_date),
    **_named_alike("us$|usd", _before("US$")),
    **_named_alike("gbp|\u00a3", _before("\u00a3")),
    **_named_alike("euro|\u20ac", _before("\u20ac")),
    **_named_alike("inr|indian rupee", _before("\u20b9")),
    **{name: _ship(name.upper()) for name in ("uss", "hms", "hmas", "hmcs", "ss", "sms", "rms", "mv")},
    **_named_alike("nbsp|spaces|space|thinsp", _constant(" ")),
    **_named_alike("snd|snds|spnd|sndash|spaced ndash|spaced en dash", _constant(" \u2013 ")),
    **_named_alike("ndash|en dash", _constant("\u2013")),
    **_named_alike("mdash|mdashb|em dash", _constant("\u2014")),
    **_named_alike("spaced mdash|spaced em dash", _constant(" \u2014 ")),
    **_named_alike("'s", _constant(f"{_QUOTE}s")),
    **_named_alike("'|-'", _constant(_QUOTE)),
    **_named_alike("' \"|'\"", _constant(f'{_QUOTE}"')),
    **_named_alike("\" '|\"'", _constant(f'"{_QUOTE}')),
    **_named_alike('-"', _constant('"')),
    **_named_alike("sic|sic!", lambda arguments: f"{arguments.value(0)} &#91;sic&#93;".strip()),
    **_named_alike("eqm", _constant("\u21cc")),
}

_SUPERSCRIPTS = dict(zip("0123456789+-\u2212n()i", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ⁽⁾ⁱ", strict=True))
_SUBSCRIPTS = dict(zip("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))


def superscript(text: str) -> str:
    """Return text as superscript characters, or after `^` if one of them is missing in Unicode."""
    return _raised(text, _SUPERSCRIPTS, "^").translate(_WRITTEN)


def _raised(text: str, known: dict[str, str], sign: str) -> str:
    text = text.strip()
    if all(character in known for character in text):
        return "".join(known[character] for character in text)
    sign = sign.translate(_LITERALS)
    return f"{sign}{text}" if len(text) == 1 else f"{sign}({text})"


_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma sigma tau upsilon"
    " phi chi psi omega"
)
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_SIGNS = (
    "varepsilon ε varphi φ vartheta θ times × cdot · pm ± le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ sim ~ equiv ≡"
    " infty ∞"
    " in ∈ notin ∉ subset ⊂ subseteq ⊆ cup ∪ cap ∩ to → rightarrow → mapsto ↦ Rightarrow ⇒ forall ∀ exists ∃ sum ∑"
    " prod ∏ int ∫ partial ∂ nabla ∇ ldots ... dots ... cdots ... circ ° prime ′ emptyset ∅ ell ℓ hbar ℏ mid | land ∧"
    " lor ∨ neg ¬ langle ⟨ rangle ⟩"
)
_SYMBOLS = {
    **{name: chr(ord("α") + index) for index, name in enumerate(_GREEK.split())},
    **dict(zip(_CAPITALS.split(), "ΓΔΘΛΞΠΣΦΨΩ", strict=True)),
    **dict(zip(_SIGNS.split()[::2], _SIGNS.split()[1::2], strict=True)),
}
_SHAPES = re.compile(  # change the look of what follows
    r"\\(?:bar|hat|vec|tilde|d?dot|overline|underline|math(?:bf|rm|it|cal|bb|sf|frak)|text(?:rm|it|bf)?|mbox|rm|bf|it|left"
    r"|boldsymbol|operatorname|right|[bB]igg?|(?:text|display|script)style|limits|q?quad)(?![A-Za-z])\s*"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)\s*|\\(.)")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}|\\[dt]?frac\s*(\d)\s*(\d)")
_ROOT = re.compile(r"\\sqrt\s*\{([^{}]*)\}")
_SCRIPT = re.compile(r"([\^_])\s*(?:\{([^{}]*)\}|(\\[A-Za-z]+|[^\s{}\\]))")
_GROUP = re.compile(r"(?<!\\)\{([^{}]*)\}")
_LITERALS = str.maketrans({"{": "\ue000", "}": "\ue001", "^": "\ue002", "_": "\ue003"})  # private use: in no formula
_WRITTEN = str.maketrans({after: chr(before) for before, after in _LITERALS.items()})
_DEEPEST = 8  # groups within groups


def formula_text(source: str) -> str:
    """Return a formula in TeX as text, such as `xᵢ² ≤ 1/2`; empty for matrices, cases and long formulas."""
    if len(source) > LONGEST_FORMULA or "\\begin" in source or "&" in source:
        return ""
    text = re.sub(r"\\[{}]", lambda match: match[0][1].translate(_LITERALS), _SHAPES.sub("", source))
    for _ in range(_DEEPEST):
        before = text
        text = _FRACTION.sub(_over, text)
        text = _ROOT.sub(lambda match: f"\u221a{_grouped_term(match[1])}", text)
        text = _SCRIPT.sub(_script, text)
        text = _GROUP.sub(r" \1", text) if text == before else text
        if text == before:
            break
    text = _COMMAND.sub(_command, text)
    if "{" in text or "}" in text:
        return ""
    return re.sub(r"\s+", " ", text.translate(_WRITTEN)).strip()


def _over(match: re.Match[str]) -> str:
    above, below = (match[1], match[2]) if match[3] is None else (match[3], match[4])
    return f"{_grouped_term(above)}/{_grouped_term(below)}"


def _grouped_term(term: str) -> str:
    """Return a term, in brackets if it is a sum or a product."""
    term = term.strip()
    return term if re.fullmatch(r"\\?\w+", term) else f"({term})"


def _script(match: re.Match[str]) -> str:
    content = _COMMAND.sub(_command, match[2] if match[2] is not None else match[3])
    if content.strip() == "\u00b0":
        return "\u00b0"
    return _raised(content, _SUPERSCRIPTS if match[1] == "^" else _SUBSCRIPTS, match[1])


def _command(match: re.Match[str]) -> str:
    name = match[1]
    if name is None:
        return {"%": "%", "$": "$", "#": "#", "_": "_", "|": "\u2016", "\\": " "}.get(match[2], " ")
    spaced = match[0].endswith(" ")
    return _SYMBOLS[name] + " " * spaced if name in _SYMBOLS else f"{name} "  # sin, max, log
