"""Text to elements, as the runtimes' own tokenizer does it.

That tokenizer is not an XML parser. It knows start tags, end tags and comments; between elements it skips blanks and
line ends and nothing else; inside a start tag exactly one blank stands before each attribute; values end at the next
double quote, without escapes. An element that it has no use for is skipped with everything inside, and inside of it the
names of end tags are not compared. Where the runtime would stop at a mistake that does not hide the rest of the file, this
reader objects and goes on, so that one run shows all mistakes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum, auto

from taccl_py.runtimes import MAX_XML_ATTRIBUTES, MAX_XML_VALUE
from taccl_py.verify.msccl.findings import Findings, quoted, shown

MAX_XML_NAME = 254  # names are checked against a buffer of 255 bytes

_BLANK = re.compile(r"[ \n\r]*")
_OTHER_BLANK = re.compile(r"[\t\v\f]+")
_TAG_BLANK = re.compile(r"[ \t\n\r\v\f]+")
_TOKEN = re.compile(r"[^= >/\n\r]*")
_PLAIN_ATTRIBUTE = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,100})="([ -!#-~]{0,255})"')
_PLAIN_TAG = re.compile(
    rf"[ \n\r]*<([A-Za-z_][A-Za-z0-9_]{{0,100}})((?: {_PLAIN_ATTRIBUTE.pattern}){{0,{MAX_XML_ATTRIBUTES}}})(/?)>"
)
_KNOWN_CHILD = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}


@dataclass(frozen=True, slots=True)
class Element:
    """An element that the runtimes read, with its attributes as they see them (of equal names the first)."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    """All ``algo`` elements of a text, and the name of its very first element (None when there is none)."""

    algorithms: tuple[Element, ...]
    first: str | None


class _TagKind(Enum):
    OPEN = auto()
    SINGLE = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: _TagKind
    name: str
    line: int
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Frame:
    """An element that is open: None for one that is skipped."""

    name: str
    line: int
    element: Element | None


class _Unreadable(Exception):
    """The tokenizer cannot go on from here."""

    def __init__(self, line: int, rule: str, what: str) -> None:
        self.line = line
        self.rule = rule
        self.what = what
        super().__init__(what)


def read_document(text: str, findings: Findings) -> Document:
    """Elements of a text; errors to the text itself go to `findings`, which is broken when reading had to stop."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        findings.violation(f"line {line}", "text-nul", "a zero byte ends every C string; remove it", fatal=True)
        return Document((), None)
    loader = _Loader(_Tokenizer(text, findings), findings)
    try:
        loader.load()
    except _Unreadable as stop:
        findings.violation(f"line {stop.line}", stop.rule, stop.what, fatal=True)
    loader.report_ignored()
    return Document(tuple(loader.roots), loader.first)


def read_first(text: str, findings: Findings) -> Element | None:
    """First tag of a text, of whatever name, where all after it may be anything; None where there is none that can be read."""
    try:
        tag = _Tokenizer(text.partition("\0")[0], findings).next_tag()
    except _Unreadable as stop:
        findings.violation(f"line {stop.line}", stop.rule, stop.what, fatal=True)
        return None
    return None if tag is None else Element(tag.name, tag.line, tag.attributes)


class _Loader:
    """Builds the tree of the elements that have a meaning and skips the others, as the runtimes do."""

    def __init__(self, reader: _Tokenizer, findings: Findings) -> None:
        self.roots: list[Element] = []
        self.first: str | None = None
        self._reader = reader
        self._findings = findings
        self._ignored: dict[str, list[int]] = {}

    def load(self) -> None:
        """Read up to the end of the text.

        Raises
        ------
        _Unreadable
            Where the runtime's reader stops for good.
        """
        stack: list[_Frame] = []
        while (tag := self._reader.next_tag()) is not None:
            if tag.kind is _TagKind.CLOSE:
                self._close(tag, stack)
                continue
            frame = self._open(tag, stack)
            if tag.kind is _TagKind.OPEN:
                stack.append(frame)
        if stack:
            frame = stack[-1]
            raise _Unreadable(
                frame.line, "unterminated-element", f"<{frame.name}> is never closed; add </{frame.name}>"
            )

    def _close(self, tag: _Tag, stack: list[_Frame]) -> None:
        if not stack:
            raise _Unreadable(tag.line, "stray-closing-tag", f"</{tag.name}> closes nothing; remove it")
        frame = stack.pop()
        if frame.element is not None and frame.name != tag.name:
            raise _Unreadable(
                tag.line,
                "tag-mismatch",
                f"</{tag.name}> closes <{frame.name}> of line {frame.line}; write </{frame.name}>",
            )

    def _open(self, tag: _Tag, stack: list[_Frame]) -> _Frame:
        if self.first is None:
            self.first = tag.name
        parent = stack[-1] if stack else _Frame("", 0, None)
        inside_known = not stack or parent.element is not None
        if inside_known and parent.name == "step":
            raise _Unreadable(
                tag.line, "step-content", f"<{tag.name}> stands inside a step, at which the runtimes crash; move it out"
            )
        if not inside_known or tag.name != _KNOWN_CHILD[parent.name]:
            if inside_known:
                self._ignored.setdefault(tag.name, []).append(tag.line)
            return _Frame(tag.name, tag.line, None)
        element = Element(tag.name, tag.line, tag.attributes)
        (self.roots if parent.element is None else parent.element.children).append(element)
        return _Frame(tag.name, tag.line, element)

    def report_ignored(self) -> None:
        """Remark on elements that no runtime reads."""
        for name, lines in self._ignored.items():
            self._findings.note(
                f"<{shown(name)}> has no meaning where it stands and is skipped with everything in it"
                f" ({len(lines)} times, first on line {lines[0]})"
            )


class _Tokenizer:
    """The tokenizer: one tag after the other."""

    def __init__(self, text: str, findings: Findings) -> None:
        self._text = text
        self._position = 0
        self._findings = findings
        self._line_ends = [match.start() for match in re.finditer("\n", text)]

    def next_tag(self) -> _Tag | None:
        """Next start or end tag, or None at the end of the text.

        Raises
        ------
        _Unreadable
            If what comes is neither.
        """
        while True:
            plain = self._plain_tag()
            if plain is not None:
                return plain
            self._skip_blank()
            start = self._position
            if start == len(self._text):
                return None
            if self._text[start] != "<":
                found = quoted(self._text[start : start + 20])
                raise self._stop(start, "text-between-elements", f"expected '<' and found {found}; remove it")
            name_end = self._token_end(start + 1)
            name = self._text[start + 1 : name_end]
            if self._skip_other_markup(start, name):
                continue
            if name == "" and self._text[name_end] == "/":
                return self._closing_tag(start, name_end + 1)
            if self._text[name_end] == "=" and "\t" not in name:
                raise self._stop(start, "tag-syntax", f"'=' follows the name {quoted(name)} of a tag; remove it")
            return self._start_tag(start, name_end, name)

    def _plain_tag(self) -> _Tag | None:
        """The next tag if it is a start tag that nothing at all can be said against, as nearly all are."""
        match = _PLAIN_TAG.match(self._text, self._position)
        if match is None:
            return None
        pairs = _PLAIN_ATTRIBUTE.findall(match[2])
        attributes = dict(pairs)
        if len(attributes) < len(pairs):
            return None
        self._position = match.end()
        kind = _TagKind.SINGLE if match[5] else _TagKind.OPEN
        return _Tag(kind, match[1], self._line(match.start(1)), attributes)

    def _skip_blank(self) -> None:
        text = self._text
        while True:
            match = _BLANK.match(text, self._position)
            self._position = match.end() if match else self._position
            if text.startswith("\ufeff", self._position):
                what = "a byte order mark stands before the first '<'; save the file without it"
                self._object(self._position, "byte-order-mark", what)
                self._position += 1
                continue
            other = _OTHER_BLANK.match(text, self._position)
            if other is None:
                return
            self._object(self._position, "text-between-elements", "a TAB stands between elements; use blanks")
            self._position = other.end()

    def _skip_other_markup(self, start: int, name: str) -> bool:
        """Skip a comment or an XML declaration; return whether there was one."""
        if name.startswith("!--"):
            if self._text[start + 1 + len(name)] == "=":
                raise self._stop(
                    start, "comment-start", "the first word of a comment holds '='; start with another word"
                )
            end = self._text.find("-->", start + 4)
            if end < 0:
                raise self._stop(start, "unexpected-end", "the comment is never closed; add '-->'")
            self._position = end + 3
            return True
        if name.startswith("?"):
            self._object(start, "text-declaration", "no runtime reads '<?xml ...?>'; remove it")
            end = self._text.find("?>", start)
            if end < 0:
                raise self._stop(start, "unexpected-end", "the declaration is never closed")
            self._position = end + 2
            return True
        if name.startswith("!"):
            raise self._stop(start, "text-declaration", f"no runtime reads '<{shown(name)}'; remove it")
        return False

    def _closing_tag(self, start: int, position: int) -> _Tag:
        end = self._token_end(position)
        if self._text[end] != ">":
            raise self._stop(start, "closing-tag", f"the end tag ends with {self._text[end]!r}; write '</name>'")
        self._position = end + 1
        return _Tag(_TagKind.CLOSE, self._text[position:end], self._line(start), {})

    def _start_tag(self, start: int, position: int, name: str) -> _Tag:
        if "\t" in name:
            self._object(start, "tag-blanks", "a TAB stands in a start tag; use one blank before each attribute")
            position = start + 1 + name.index("\t")
            name = name[: name.index("\t")]
        attributes: dict[str, str] = {}
        slots = 0
        while self._blank_follows(position):
            position = self._blank_end(position)
            match = _PLAIN_ATTRIBUTE.match(self._text, position)
            if match is not None:
                key, value = match.groups()
                position = match.end()
            else:
                key, value, position = self._odd_attribute(position)
            slots += 1
            if slots <= MAX_XML_ATTRIBUTES:
                self._keep_attribute(attributes, key, value, start)
        if slots > MAX_XML_ATTRIBUTES:
            self._object(start, "attribute-limit", f"{slots} attributes; only the first {MAX_XML_ATTRIBUTES} are kept")
        kind = _TagKind.OPEN
        if self._text[position] == "/":
            kind = _TagKind.SINGLE
            slash = position
            position = self._token_end(slash + 1)
            if position > slash + 1:
                self._object(start, "tag-syntax", "text stands between '/' and '>'; write '/>'")
        if self._text[position] != ">":
            found = self._text[position]
            raise self._stop(
                start, "tag-syntax", f"expected '>' and found {found!r}; write name=\"value\" after one blank"
            )
        self._position = position + 1
        return _Tag(kind, name, self._line(start), attributes)

    def _blank_follows(self, position: int) -> bool:
        if position >= len(self._text):
            raise self._stop(position, "unexpected-end", "the text ends inside a tag")
        return self._text[position] in " \t\n\r\v\f"

    def _blank_end(self, position: int) -> int:
        """Position after the one blank before an attribute; line ends and TABs are rejected and skipped."""
        match = _TAG_BLANK.match(self._text, position)
        blanks = match.group() if match else ""
        if blanks.strip(" "):
            what = "a start tag must stand on one line, with one blank before each attribute"
            self._object(position, "tag-blanks", what)
            return position + len(blanks)
        return position + 1

    def _odd_attribute(self, position: int) -> tuple[str, str, int]:
        """Name, value and end of an attribute that is not plainly ``name="value"``."""
        text = self._text
        end = self._token_end(position)
        name = text[position:end]
        if text[end] != "=":
            what = "without a value" if name else "without a name (two blanks, or one before the end of the tag)"
            self._findings.note(
                f"an attribute {what} takes one of {MAX_XML_ATTRIBUTES} places (line {self._line(end)})"
            )
            return name, "", end
        if text[end + 1 : end + 2] != '"':
            what = f'the value of {quoted(name)} does not start with a double quote; write {shown(name)}="..."'
            raise self._stop(end, "attribute-quotes", what)
        stop = text.find('"', end + 2)
        if stop < 0:
            raise self._stop(end, "unexpected-end", f"the value of {quoted(name)} is never closed")
        value = text[end + 2 : stop]
        if len(value.encode("utf-8", "surrogatepass")) > MAX_XML_VALUE:
            what = f"the value of {quoted(name)} overwrites memory: it may have {MAX_XML_VALUE} bytes"
            self._object(end, "value-length", what)
        return name, value, stop + 1

    def _keep_attribute(self, attributes: dict[str, str], name: str, value: str, start: int) -> None:
        if name in attributes:
            kept = quoted(attributes[name])
            self._findings.note(f"attribute {quoted(name)} stands twice on line {self._line(start)}; {kept} counts")
        elif name:
            attributes[name] = value

    def _token_end(self, position: int) -> int:
        match = _TOKEN.match(self._text, position)
        end = match.end() if match else position
        if end >= len(self._text):
            raise self._stop(position, "unexpected-end", "the text ends inside a tag")
        if len(self._text[position:end].encode("utf-8", "surrogatepass")) > MAX_XML_NAME:
            raise self._stop(position, "tag-name-length", f"a name has more than {MAX_XML_NAME} bytes")
        return end

    def _line(self, position: int) -> int:
        return bisect_left(self._line_ends, position) + 1

    def _object(self, position: int, rule: str, what: str) -> None:
        self._findings.violation(f"line {self._line(position)}", rule, what)

    def _stop(self, position: int, rule: str, what: str) -> _Unreadable:
        return _Unreadable(self._line(position), rule, what)
