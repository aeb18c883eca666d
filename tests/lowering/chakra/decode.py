"""A decoder of execution traces of its own: protobuf's wire format, then the fields of ``et_def.proto`` by their numbers."""

from dataclasses import dataclass, field

NODE = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps"}
VALUES = (7, 9, 11, 13, 27)  # int32, int64, uint32, uint64, bool


@dataclass
class Decoded:
    """A node as it lies in the file."""

    id: int = 0
    name: str = ""
    type: int = 0
    ctrl_deps: list = field(default_factory=list)
    data_deps: list = field(default_factory=list)
    attributes: dict = field(default_factory=dict)

    def __getattr__(self, name):
        try:
            return self.__dict__["attributes"][name]
        except KeyError:
            raise AttributeError(name) from None


def number(data, at):
    """Value of the varint at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at


def fields(data):
    """Numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = number(data, at)
        if key & 7 == 0:
            value, at = number(data, at)
        else:
            assert key & 7 == 2, f"wire type {key & 7} is in no execution trace of ours"
            length, at = number(data, at)
            assert at + length <= len(data), "a field is longer than its message"
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def numbers(data):
    found, at = [], 0
    while at < len(data):
        value, at = number(data, at)
        found.append(value)
    return found


def attribute(data):
    name, value = None, None
    for key, content in fields(data):
        if key == 1:
            name = content.decode()
        else:
            assert key in VALUES, f"attribute field {key}"
            value = content
    return name, value


def node(data):
    found = Decoded()
    for key, content in fields(data):
        if key == 10:
            name, value = attribute(content)
            found.attributes[name] = value
        elif key in (4, 5):
            getattr(found, NODE[key]).extend(numbers(content) if isinstance(content, bytes) else [content])
        else:
            setattr(found, NODE[key], content.decode() if key == 2 else content)
    return found


def decode(data):
    """The version in a file's metadata, and its nodes."""
    messages, at = [], 0
    while at < len(data):
        length, at = number(data, at)
        assert at + length <= len(data), "the file ends inside a message"
        messages.append(data[at : at + length])
        at += length
    version = dict(fields(messages[0]))[1].decode()
    return version, [node(message) for message in messages[1:]]
