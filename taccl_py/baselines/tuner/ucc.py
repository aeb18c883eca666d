"""UCC: ``UCC_TL_UCP_TUNE``, a string of rules for its transport over UCP.

Format: ``docs/user_guide.md`` and ``src/coll_score`` of openucx/ucc 8263de4: ``coll:low-high:[ranks]:@algorithm``, ``#`` between rules. Ranges
that meet share the size where they do, which is then the later one's. Sizes are bytes as nccl-tests counts them. The file is a line for
a shell; without ``export`` it is one for ``ucc.conf``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from taccl_py.baselines.tuner.columns import parsed_word
from taccl_py.baselines.tuner.rules import UCC_NAMES, TunerRule, TunerTarget, words_of
from taccl_py.errors import InputError

_VARIABLE = "UCC_TL_UCP_TUNE"
_TOKEN = re.compile(r"([a-z_]+):([0-9]+)-([0-9]+):\[([0-9]+)\]:@([a-z_]+)")


def write_ucc(rules: Sequence[TunerRule]) -> str:
    """Shell line that sets the variable."""
    tokens = [
        f"{UCC_NAMES[rule.kind]}:{rule.low_bytes}-{rule.high_bytes + 1}:[{rule.num_ranks}]:@{rule.algorithm}"
        for rule in rules
    ]
    return f"export {_VARIABLE}={shlex.quote('#'.join(tokens))}\n"


def read_ucc(text: str, path: str) -> tuple[TunerRule, ...]:
    """Rules of a line that `write_ucc` wrote.

    Raises
    ------
    InputError
        If it does not set the variable, or a rule is wrong.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    variable, _, value = words[-1].partition("=") if words else ("", "", "")
    if variable != _VARIABLE or words[:-1] not in ([], ["export"]):
        raise InputError(f"does not set {_VARIABLE}; write it with taccl compare --tuner ucc", path=path)
    names = {name: kind for kind, name in UCC_NAMES.items()}
    rules = []
    for token in value.split("#"):
        match = _TOKEN.fullmatch(token)
        if match is None or int(match[2]) >= int(match[3]):
            raise InputError(
                f"found the rule {token[:60]!r}, write it as coll:low-high:[ranks]:@algorithm",
                path=path,
                field=_VARIABLE,
            )
        kind = names[parsed_word(match[1], names, "collective", path, _VARIABLE)]
        algorithm = parsed_word(match[5], words_of(TunerTarget.UCC, kind), "algorithm", path, _VARIABLE)
        rules.append(TunerRule(kind, int(match[2]), int(match[3]) - 1, algorithm, "", int(match[4]), 0))
    return tuple(rules)
