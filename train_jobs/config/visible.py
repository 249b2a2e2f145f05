"""Text from outside on a terminal: file names, names of runs, messages of other programs, logs.

A terminal obeys escape sequences: they move the cursor over other lines, change its title, write to the clipboard, and
make links. Directional marks of Unicode reorder a line. Such characters are shown as Python writes them, `\\x1b`.
"""

from __future__ import annotations

import re

# C0 and C1 controls, DEL; marks and overrides of direction; line separators; invisible characters; undecodable bytes
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
_ANY = re.compile(f"[{_UNSAFE}]")
_NOT_LINES = re.compile(f"(?![\t\n])[{_UNSAFE}]")
# Colours, bold and similar; not 8, which conceals text
_CODE = r"(?:0?[0-79]|[2-9][0-7]|29|39|49|10[0-7]|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3})"
_STYLE = rf"\x1b\[(?:{_CODE}(?:;{_CODE})*)?m"
_STYLE_OR_UNSAFE = re.compile(f"({_STYLE})|(?![\t\n])[{_UNSAFE}]")
RESET = "\x1b[0m"


def visible(text: str) -> str:
    """Return a name or a value as one line, with unsafe characters and line ends escaped."""
    return text if text.isascii() and text.isprintable() else _ANY.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return a text of several lines with unsafe characters escaped; line ends and tabs stay."""
    return _NOT_LINES.sub(_escaped, text)


def visible_styled(text: str) -> str:
    """Return a text of several lines that may have colours; all other escape sequences are escaped."""
    return _STYLE_OR_UNSAFE.sub(lambda match: match[1] or _escaped(match), text)


def visible_log(text: str) -> str:
    """Return a line of a log: its colours end with it, and what a carriage return would overwrite stays visible."""
    shown = visible_styled(text.rstrip("\r").replace("\r", "\n"))
    return f"{shown}{RESET}" if "\x1b[" in shown else shown


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # the latter stand for bytes that are not UTF-8
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}"
