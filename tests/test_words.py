"""One word, one meaning: names of classes."""

import ast
from collections import defaultdict

from tests.test_architecture import name_of, trees

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
