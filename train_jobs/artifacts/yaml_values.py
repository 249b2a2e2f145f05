"""YAML of users as plain values with the line of each key; size, nesting and aliases are bounded.

`layers` reads spec files and `--set` values with it. A file of some bytes may otherwise take minutes and gigabytes:
aliases of aliases multiply, and deep nesting exhausts the stack.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from train_jobs.config.errors import SpecError

KeyPath = tuple[str | int, ...]
MOST_BYTES = 4 << 20  # of a file; a list of 50,000 paths of text takes 3 MB
MOST_VALUES = 100_000  # those of aliases counted each time; about a second
DEEPEST = 50  # sections and lists inside each other; a spec has 6
LONGEST_NUMBER = 100  # characters; Python would refuse to print a number of more than 4,300 digits
SMALL = 1 << 14  # characters that Python's parser reads in milliseconds
# libyaml is ten times as fast as Python's parser; some builds of PyYAML lack it.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WRITER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_FLOAT = "tag:yaml.org,2002:float"
_NUMBERS = ("tag:yaml.org,2002:int", _FLOAT)
# PyYAML follows YAML 1.1, which reads `1e-7` as text; JSON and YAML 1.2 read it as a number.
EXPONENT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class _Loader(_PARSER):  # type: ignore[misc]  # one of two classes
    """Reads numbers like JSON and YAML 1.2."""


class SpecDumper(_WRITER):  # type: ignore[misc]
    """Writes YAML for `read_yaml`: text that it would read as a number has quotes."""


for _kind in (_Loader, SpecDumper):
    _kind.add_implicit_resolver(_FLOAT, EXPONENT, list("-+.0123456789"))


class Line(int):
    """Line of a value in its document, from 1; 0: the document is a flag."""

    text: str | None
    """The value as it was written, if it is a number, a truth value or a date; None: any other value."""

    def __new__(cls, number: int, text: str | None = None) -> Line:
        """Return a line."""
        line = super().__new__(cls, number)
        line.text = text
        return line

    @classmethod
    def of(cls, node: yaml.Node, value: yaml.Node | None = None) -> Line:
        """Return the line of a node, with the text of its value."""
        value = value or node
        plain = isinstance(value, yaml.ScalarNode) and value.tag.rpartition(":")[2] not in {"str", "null"}
        return cls(node.start_mark.line + 1, value.value if plain else None)


@dataclass
class YamlValues:
    """Values of a document, with their lines and problems."""

    source: str
    """Name of the document in messages."""
    tree: Any = None
    """The values; mappings have text as keys."""
    lines: dict[KeyPath, Line] = field(default_factory=dict)
    """Path of a key or list entry -> its line; of a document that is one value, () -> 1."""
    problems: list[str] = field(default_factory=list)
    """Duplicate keys and invalid values, each with its place."""
    _count: int = 0
    _loader: yaml.SafeLoader = field(default_factory=lambda: yaml.SafeLoader(""))

    def construct(self, node: yaml.Node, path: KeyPath = ()) -> Any:
        """Return the value of a node; add its lines and problems.

        Raises:
            SpecError: aliases written out are more than 100,000 values.
        """
        self._count += 1
        if self._count > MOST_VALUES:
            raise too_large(self.source, f"more than {MOST_VALUES:,} values with its aliases written out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[*path, index] = Line.of(item)
            return [self.construct(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{self.source}:{line}: {dotted((*path, '?'))}: a key must be text")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key in tree:
                # YAML forbids duplicate keys, but PyYAML silently keeps the last one.
                first = self.lines[here]
                self.problems.append(f"{self.source}:{line}: {dotted(here)}: duplicate key (first on line {first})")
            self.lines[here] = Line.of(key_node, value_node)
            tree[key] = self.construct(value_node, here)
        return tree

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        try:
            if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
                raise ValueError(f"a number of more than {LONGEST_NUMBER} characters")
            value = self._loader.construct_object(node)
            # the hash 12e4567 is no number
            return node.value if node.tag == _FLOAT and math.isinf(value) and EXPONENT.match(node.value) else value
        except (yaml.YAMLError, ValueError) as problem:
            what = str(problem)
        except (AttributeError, LookupError, TypeError, OverflowError):  # of a tag that does not fit: `!!timestamp x`
            what = f"not a valid {node.tag.rpartition(':')[2]}"
        self.problems.append(f"{self.source}:{node.start_mark.line + 1}: {dotted(path)}: {what}")
        return None


def read_yaml(text: str, source: str) -> YamlValues:
    """Return the values of a YAML or JSON document; None for an empty one.

    Args:
        text: the document.
        source: its name in messages.

    Raises:
        SpecError: the text is not YAML, or is too large, nested too deeply or recursive.
    """
    values = YamlValues(source)
    if len(text) > MOST_BYTES:
        raise too_large(source, f"more than {MOST_BYTES >> 20} MiB")
    try:
        _require_bounded(text, source)
        # The node graph keeps the line of every key; `yaml.safe_load` drops it.
        node = yaml.compose(text, Loader=_Loader)
        if isinstance(node, yaml.ScalarNode):
            values.lines[()] = Line.of(node)
        if node is not None:
            values.tree = values.construct(node)
    except (yaml.YAMLError, UnicodeError) as problem:
        raise SpecError(f"{source} is not valid YAML", problems=[_yaml_problem(text, problem, source)]) from None
    return values


def too_large(source: str, what: str) -> SpecError:
    """Return the error for a document beyond a limit."""
    return SpecError(f"cannot read {source}: {what}", fix="shorten it: a folder or a pattern can name many files")


def dotted(path: KeyPath) -> str:
    """Return `("train", "betas", 0)` as `train.betas.0`."""
    return ".".join(str(part) for part in path)


def _require_bounded(text: str, source: str) -> None:
    """Check nesting, values and anchors, event by event; composing would recurse into them first.

    Raises:
        SpecError: a limit is exceeded, or an alias is inside of what it names.
    """
    open_anchors: list[str | None] = []
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        where = f"line {event.start_mark.line + 1}" if event.start_mark else source
        if count > 2 * MOST_VALUES:
            raise too_large(source, f"more than {MOST_VALUES:,} values")
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > DEEPEST:
                raise SpecError(
                    f"cannot read {source}: more than {DEEPEST} sections inside each other", facts={"where": where}
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in open_anchors:
            line = event.start_mark.line + 1 if event.start_mark else 1
            text = f"{source}:{line}: *{event.anchor} is inside of what it names"
            raise SpecError(f"cannot read {source}", problems=[text])


def _yaml_problem(text: str, problem: Exception, source: str) -> str:
    """Return the place and the reason of an error; those of Python's parser are more precise than libyaml's."""
    if len(text) <= SMALL:
        try:
            yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as precise:
            problem = precise
    mark = getattr(problem, "problem_mark", None)
    what = getattr(problem, "problem", None) or str(problem).splitlines()[0]
    if mark is None and isinstance(problem, yaml.reader.ReaderError):
        line = text.count("\n", 0, problem.position)  # a character that YAML does not allow
        return f"{source}:{line + 1}: {what}"
    return f"{source}:{mark.line + 1}: {what}" if mark else f"{source}: {what}"
