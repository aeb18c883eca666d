"""One word, one meaning: names of classes, first words of docstrings, and the words of help, tables, errors and docs."""

import ast
import re
from collections import defaultdict

import click
import pytest

from taccl_py.cli import cli
from tests.test_architecture import PAGES, ROOT, name_of, trees

# Verifier and executors share no code with the lowering, so they have the parts of a file format a second time.
ONE_FORMAT_READ_APART = {
    "Dependency": ["execute/plan.py", "verify/msccl/grammar.py"],
    "Element": ["lowering/msccl_xml.py", "verify/msccl/text.py"],
    "Gpu": ["lowering/program.py", "verify/msccl/grammar.py", "verify/mscclpp/grammar.py"],
    "Operation": ["lowering/plan.py", "verify/mscclpp/grammar.py"],
    "Plan": ["lowering/plan.py", "verify/mscclpp/grammar.py"],
    "Step": ["execute/plan.py", "lowering/program.py", "verify/msccl/grammar.py"],
    "Threadblock": ["execute/plan.py", "lowering/program.py", "verify/msccl/grammar.py"],
}
# Words for a message, a path, a set of trees and a shard that the project does not use, and the class names in which they are others' words.
NOT_OUR_WORDS = {
    "Draft",
    "Move",
    "Batch",
    "Sending",
    "Job",
    "Ride",
    "Hop",
    "Send",
    "Way",
    "Ways",
    "Forest",
    "Grove",
    "Woods",
}
NOT_OUR_WORDS |= {"Stand", "Ground", "Judge", "Circle", "Deed"}
OTHERS_WORDS = {"HopTimes": "TACCL's hops", "_HopDistances": "TACCL's hops"}


def classes():
    """Names of all classes, with their modules."""
    return [
        (name_of(path), node.name)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def words_of(name):
    """The words of a name like OneSidedPlan."""
    found = []
    for letter in name.lstrip("_"):
        if letter.isupper() or not found:
            found.append(letter)
        else:
            found[-1] += letter
    return found


def test_no_class_name_has_two_meanings():
    """Every engine has its `Params`; but for these, a name is that of one class, with an underscore or without."""
    places = defaultdict(list)
    for place, name in classes():
        places[name.lstrip("_")].append(place)
    del places["Params"]
    assert {name: found for name, found in places.items() if len(found) > 1} == ONE_FORMAT_READ_APART


def test_class_names_use_the_words_of_the_glossary():
    wrong = {name for _, name in classes() if NOT_OUR_WORDS & set(words_of(name))}
    assert wrong == set(OTHERS_WORDS)


# Words for a path, the verifier, a deadlock cycle, a message, a tree set, a shard and a lower bound that readers had to guess.
RIDDLES = re.compile(
    r"""(?ix) \b (?:
        ways? | judg\w* | circles? | who (?:\ has|\ waits|\ tells) | whoever | rides? | deeds? | drafts? | sendings | batch(?:es)?
        | forests? | groves? | woods | jobs? | rank's\ shares? | own\ shares? | algorithm\ can\ beat
    ) \b"""
)
# The same words where they are plain English or other people's: directions, and jobs that schedulers, MPI and CI start.
PLAIN = re.compile(
    r"""(?ix) \b (?:
        (?:one|both|half)[ -]ways? | two-way | (?:in|of)\ a\ job | the\ job(?:'s)? | your\ job | a\ ci\ job | run\ a\ job
    ) \b"""
)
# A rule's name that ``check --json`` prints, and a key of topology files.
NAMES = re.compile(r"not-judged|both_ways")
# Whole strings: a key of ``replicate --json``, whose table says verify.
KEYS = {"pipeline/search.py": "judge", "report/group.py": "judge"}
# The changelog says which words were replaced.
PROSE = {path: text for path, text in PAGES.items() if path.name != "changelog.md"} | {
    path: path.read_text(encoding="utf-8")
    for path in (ROOT / "sketches/README.md", ROOT / "topologies/README.md", ROOT / "taccl_py/profiles/README.md")
}
FENCED_TEXT = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)

# First words that do not name the thing; bounds have so many left, which may only become fewer.
VAGUE = re.compile(r"(?i)(?:what|whether|such|those)\b")
MOST_VAGUE_IN_BOUNDS = 36

# Words for the same in names of variables and functions.
NOT_OUR_NAMES = re.compile(
    r"(^|_)(way|ride|job|draft|batch(es)?|move|forest|grove|woods|stand|ground|sending|circle|deed|judge)s?(_|$)"
)
# Runs that have begun, and a function of bounds.
PLAIN_NAMES = {"most_under_way", "under_way", "require_ways"}


def riddles(text):
    """Words of a text that a reader has to guess."""
    return RIDDLES.findall(PLAIN.sub("", NAMES.sub("", text)))


def docstrings(tree):
    """Docstrings of a module and of all that it defines, with the nodes that hold them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.value


def test_riddles_are_found_and_plain_words_are_not():
    assert riddles("Ways to judge who waits for whom: a way, both ways") == ["Ways", "judge", "who waits", "way"]
    assert riddles("a one-way ring, in a job, sending: always, likewise, not-judged, broadway") == []
    assert riddles("no algorithm can beat the rank's share") == ["algorithm can beat", "rank's share"]


def test_docs_have_no_riddles():
    found = {path.name: riddles(FENCED_TEXT.sub("", text)) for path, text in PROSE.items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_help_has_no_riddles():
    def texts(command, path=("taccl",)):
        yield " ".join(path), f"{command.help} {command.short_help}"
        for parameter in command.params:
            yield " ".join((*path, *parameter.opts)), getattr(parameter, "help", None) or ""
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield from texts(command.get_command(context, name), (*path, name))

    every = dict(texts(cli))
    assert len(every) > 300
    assert {path: riddles(text) for path, text in every.items() if riddles(text)} == {}


def test_tables_errors_and_notes_have_no_riddles():
    """All strings of the package that are no docstrings: errors, headers of tables, notes, names of variants."""
    found = {}
    for path, tree in trees().items():
        apart = {id(text) for text in docstrings(tree)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in apart
                and KEYS.get(name_of(path)) != node.value
                and riddles(node.value)
            ):
                found[f"{name_of(path)}:{node.lineno}"] = node.value
    assert found == {}


def names(tree):
    """What a module calls functions, parameters, attributes and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield name


def test_names_in_engines_use_the_words_of_the_glossary():
    """Bounds are not yet held to it."""
    found = {
        (name_of(path), name)
        for path, tree in trees().items()
        for name in names(tree)
        if NOT_OUR_NAMES.search(name) and name not in PLAIN_NAMES
    }
    assert {each for each in found if each[0].startswith("synthesis/") and "/bounds/" not in each[0]} == set()


def test_docstrings_begin_with_the_thing():
    found = [
        f"{name_of(path)}:{text.lineno}"
        for path, tree in trees().items()
        for text in docstrings(tree)
        if VAGUE.match(text.value)
    ]
    assert [place for place in found if not place.startswith("synthesis/bounds/")] == []
    assert len(found) <= MOST_VAGUE_IN_BOUNDS


@pytest.mark.parametrize("first", ["What is done.", "whether it is", "Such things", "Those that"])
def test_vague_first_words_are_seen(first):
    assert VAGUE.match(first)
    assert not VAGUE.match("True if it is whatever it was")
