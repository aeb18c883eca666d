"""Open MPI 6: rules for coll/tuned in JSON, ``coll_tuned_dynamic_rules_filename``.

Format: ``docs/tuning-apps/collectives/tuned.rst`` and ``coll_tuned_dynamic_file.c`` of open-mpi/ompi 8efebee: the first entry for the size of the
communicator counts, and in it the first rule for the size of the message, both ends included. Sizes are those of nccl-tests: bytes of the
whole buffer, also where ranks have parts of it. An algorithm that Open MPI does not know is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taccl_py.baselines.tuner.columns import parsed_word
from taccl_py.baselines.tuner.rules import OPEN_MPI_NAMES, TunerRule, TunerTarget, words_of
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, canonical_json, parse_json

_VERSION, _MODULE = 3, "tuned"


def write_open_mpi(rules: Sequence[TunerRule]) -> str:
    """Text of the file, for communicators of just so many ranks."""
    collectives: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        entries = collectives.setdefault(OPEN_MPI_NAMES[rule.kind], [])
        if not entries or entries[-1]["comm_size_min"] != rule.num_ranks:
            entries.append({"comm_size_min": rule.num_ranks, "comm_size_max": rule.num_ranks, "rules": []})
        entries[-1]["rules"].append(
            {"msg_size_min": rule.low_bytes, "msg_size_max": rule.high_bytes, "alg": rule.algorithm}
        )
    return canonical_json({"rule_file_version": _VERSION, "module": _MODULE, "collectives": collectives})


def read_open_mpi(text: str, path: str) -> tuple[TunerRule, ...]:
    """Rules of a file that are for communicators of one size.

    Raises
    ------
    InputError
        If a field is wrong, or a communicator's size is a range.
    """
    fields = Fields(parse_json(text, path), path)
    version, module = fields.integer("rule_file_version"), fields.text("module")
    if (version, module) != (_VERSION, _MODULE):
        raise InputError(
            f"is for version {version} of module {module!r}, {_VERSION} of {_MODULE!r} is needed", path=path
        )
    names = {name: kind for kind, name in OPEN_MPI_NAMES.items()}
    collectives = fields.object("collectives")
    rules = []
    for name in collectives.names():
        kind = names[parsed_word(name, names, "collective", path, "collectives")]
        for place, item in enumerate(collectives.items(name)):
            where = f"/collectives/{name}/{place}"
            entry = Fields(item, path, where)
            ranks, most = (entry.integer(key, least=2) for key in ("comm_size_min", "comm_size_max"))
            if ranks != most:
                entry.fail("comm_size_max", f"found {most}, the same as comm_size_min ({ranks}) is needed")
            for number, each in enumerate(entry.items("rules")):
                rule = Fields(each, path, f"{where}/rules/{number}")
                low, high = (rule.integer(key, least=0) for key in ("msg_size_min", "msg_size_max"))
                if low > high:
                    rule.fail("msg_size_max", f"found {high}, at least msg_size_min ({low}) is needed")
                word = parsed_word(
                    rule.text("alg"),
                    words_of(TunerTarget.OPEN_MPI, kind),
                    "algorithm",
                    path,
                    f"{where}/rules/{number}/alg",
                )
                rules.append(TunerRule(kind, low, high, word, "", ranks, 0))
    return tuple(rules)
