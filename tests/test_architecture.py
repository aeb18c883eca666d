"""The rules of the code base that no compiler checks: who may import whom, what is too long, what the README promises."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

from taccl_py.cli import cli
from taccl_py.releases import RELEASES
from tests.conftest import UNKNOWN_NAMES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "taccl_py"
MODULES = tuple(sorted(PACKAGE.rglob("*.py")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES[ROOT / "README.md"]
TEXT = "\n".join(PAGES.values())

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_NESTING = 4

# What solves and what draws: nobody else may depend on their packages, so that they can be exchanged and left out.
FENCED = {
    "highspy": ["solvers/"],
    "ortools": ["solvers/"],
    "pulp": ["solvers/"],
    "click": ["cli/"],
    "rich": ["cli/", "report/"],
    "distributed": ["campaign/", "solvers/cluster"],
    "plotly": ["report/"],
    "matplotlib": ["report/"],
    "networkx": ["discover/"],
    "mpi4py": ["execute/"],
    "torch": ["execute/", "torch/"],
    "mscclpp": ["execute/"],
}

# In no package index, so no extra can ask for it; the command that needs it says where it comes from.
BUILT_FROM_SOURCE = {"mscclpp"}


@cache
def trees():
    """Syntax trees of all modules, which only some tests take the time for."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


# Imports


def test_the_import_contracts_hold():
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    assert f"{len(contracts)} kept, 0 broken" in done.stdout


def test_every_part_of_the_package_has_its_layer():
    (layers,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert layers["exhaustive"]
    named = {part.strip() for layer in layers["layers"] for part in layer.split("|")}
    found = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert named == found - {"__init__", "__main__", "py", "_data"}


def loaded_by(package, parts):
    """Modules of these parts of the program that are there after every module of a package has been imported."""
    names = [
        f"taccl_py.{name_of(path).removesuffix('.py').replace('/', '.')}" for path in (PACKAGE / package).rglob("*.py")
    ]
    program = (
        f"import sys\nfrom importlib import import_module\nfor name in {sorted(names)}: import_module(name)\n"
        f"print(*sorted(n for n in sys.modules for p in {parts} if (n + '.').startswith(f'taccl_py.{{p}}.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_verifiers_load_nothing_of_what_they_verifier():
    assert loaded_by("verify", ["synthesis", "solvers", "sketch", "lowering", "simulate"]) == []


def test_the_simulator_loads_only_what_a_program_is():
    """It replays programs and plans as the lowering makes them, so it shares their records, and nothing that decides anything."""
    assert loaded_by("simulate", ["synthesis", "solvers", "sketch", "verify"]) == []
    records = [f"taccl_py.lowering.{name}" for name in ("cells", "plan", "program")]
    assert loaded_by("simulate", ["lowering"]) == ["taccl_py.lowering", *records]


def test_what_runs_programs_loads_nothing_that_made_or_verified_them():
    others = ["synthesis", "solvers", "sketch", "topology", "schedule", "lowering", "verify", "simulate"]
    assert loaded_by("execute", others) == []


def test_what_scripts_import_loads_no_torch_and_nothing_that_made_or_verified_programs():
    """Torch is loaded by the call of `load`."""
    others = [
        "synthesis",
        "solvers",
        "sketch",
        "topology",
        "schedule",
        "lowering",
        "verify",
        "simulate",
        "cli",
        "pipeline",
    ]
    assert loaded_by("torch", others) == []
    program = "import sys, taccl_py.torch; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("False\n", 0)


def test_engines_load_neither_lowering_nor_verifiers():
    assert loaded_by("synthesis", ["lowering", "verify", "simulate", "pipeline", "cli"]) == []


def imported(tree):
    """Top-level packages that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", FENCED)
def test_packages_of_others_stay_behind_their_fence(package):
    users = [name_of(path) for path, tree in trees().items() if package in imported(tree)]
    assert users
    assert [name for name in users if not name.startswith(tuple(FENCED[package]))] == []


def package_name(requirement):
    return re.split(r"[<>=!~ ;\[]", requirement, maxsplit=1)[0]


def test_what_is_imported_is_what_is_installed_with_the_package():
    """Nothing is asked of the user that is not used, and nothing used that neither the package nor an extra asks for."""
    used = {name for tree in trees().values() for name in imported(tree)} - sys.stdlib_module_names - {"taccl_py"}
    project = PROJECT["project"]
    declared = set(map(package_name, project["dependencies"]))
    extras = {name for lines in project["optional-dependencies"].values() for name in map(package_name, lines)}
    assert declared - used == set()
    assert used - declared - extras == BUILT_FROM_SOURCE


# Size and shape


def test_every_module_says_what_it_is():
    assert [name_of(path) for path, tree in trees().items() if not ast.get_docstring(tree)] == []
    folders = {path.parent for path in MODULES}
    assert [folder.name for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_no_module_is_too_long():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def functions():
    """All functions and methods, with their modules."""
    return [
        (f"{name_of(path)}:{node.name}", node)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


def code_lines(function):
    """Lines of a function from its ``def``, without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function, clean=False) is not None else None
    return function.end_lineno - function.lineno + 1 - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0)


def test_no_function_is_too_long():
    assert {name: code_lines(node) for name, node in functions() if code_lines(node) > MAX_FUNCTION_LINES} == {}


def nesting(node):
    """How many blocks lie inside each other; an ``elif`` is no deeper than its ``if``."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        is_block = isinstance(child, ast.If | ast.For | ast.While | ast.With | ast.Try) and not is_elif
        deepest = max(deepest, is_block + nesting(child))
    return deepest


def test_no_function_is_nested_too_deeply():
    assert {name: nesting(node) for name, node in functions() if nesting(node) > MAX_NESTING} == {}


# Tuned numbers

# Numbers of engines that are no tuning: what stands for none or for a kind, what a format or a float prescribes.
NO_TUNING = {
    "demands/birkhoff.py": {"_NOTHING": "a tolerance"},
    "hierarchy/grid.py": {"ASIDE": "a kind of resource"},
    "hierarchy/outline.py": {"INSIDE": "a kind of resource", "ACROSS": "a kind of resource"},
    "hierarchy/rooted.py": {"_HOME": "a kind of resource"},
    "matching/flood.py": {"_BITS": "bits of a word"},
    "matching/owners.py": {"_TURN": "the order of messages that are equally urgent"},
    "matching/timetable.py": {"_SOON": "a tolerance", "_NOBODY": "stands for none"},
    "models/cp_messages.py": {"_BUILDING": "a rate of counted work"},
    "pareto.py": {"_NO_LIMIT": "stands for none"},
    "restrict.py": {"UNREACHED": "stands for none"},
    "routes.py": {"FAR": "stands for none"},
    "trees/rails.py": {"_NONE": "stands for none", "_MOST_EXPONENT": "the largest of which sums are floats"},
    "trees/rounding.py": {"_MOST_EXPONENT": "the largest of which products are floats"},
    "uneven.py": {"_ELEMENT_BYTES": "bytes of an element"},
}
EVIDENCE = r"(?s).*\. (?:Guess|Bench: (\w+)|Measured: .+|Source: .+)\."


def numbers(tree):
    """Names that a module gives numbers, or what is made of them."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            constants = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            if any(isinstance(value, int | float) and not isinstance(value, bool) for value in constants):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def test_tuned_numbers_of_engines_stand_in_their_params():
    """Not as constants of modules, where nobody sees which there are and why."""
    engines = PACKAGE / "synthesis"
    found = {
        path.relative_to(engines).as_posix(): set(numbers(tree))
        for path, tree in trees().items()
        if path.is_relative_to(engines) and not path.is_relative_to(engines / "bounds")
    }
    assert {name: names for name, names in found.items() if names} == {name: set(of) for name, of in NO_TUNING.items()}


def params():
    """Every class `Params`, with its module, its fields and what its docstring says of each."""
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == "Params":
                fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
                text = ast.get_docstring(node).split("Attributes\n----------\n")[1]
                blocks = re.findall(r"^(\w[\w, ]*)\n((?:    .*\n?)+)", text, flags=re.MULTILINE)
                yield name_of(path), node, fields, {name: " ".join(said.split()) for name, said in blocks}


def test_every_tuned_number_says_what_it_is_and_why_it_is_so():
    """A guess, a section of scripts/bench whose figures it has moved, a figure that it has moved, or where it is from."""
    sections = set(
        re.findall(r"^def (\w+)\(bench: Bench\)", (ROOT / "scripts/bench").read_text(encoding="utf-8"), re.M)
    )
    found = list(params())
    assert len(found) > 20
    for name, node, fields, said in found:
        assert [ast.unparse(each) for each in node.decorator_list] == ["dataclass(frozen=True)"], name
        assert [each for names in said for each in names.split(", ")] == fields, name
        for names, text in said.items():
            match = re.fullmatch(EVIDENCE, text)
            assert match, f"{name}: {names} has no evidence"
            assert match[1] is None or match[1] in sections, f"{name}: {names} names no section of scripts/bench"


# Manners


def test_nothing_is_asserted_and_nothing_below_the_command_line_asks_for_the_users_surroundings():
    """Input is refused with a sentence; files are those that the caller names. A module that is installed alone is its own command."""
    surroundings = {"environ", "getenv", "getcwd", "cwd", "chdir", "argv"}
    found = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            asserts = isinstance(node, ast.Assert)
            asks = (
                isinstance(node, ast.Attribute)
                and node.attr in surroundings
                and not name_of(path).startswith(("cli/", "execute/taccl_plans.py"))
            )
            if asserts or asks:
                found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []


# The README and the pages of docs/


def commands(group=cli, words=()):
    """Every command by its words; groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


COMMANDS = dict(commands())
# In blocks of their own, and in the text.
MENTIONED = re.findall(r"^(taccl .*)$|`(taccl [^`]+)`", TEXT, flags=re.MULTILINE)
LINES = sorted({" ".join("".join(line).split()) for line in MENTIONED})


def command_of(words):
    """The longest command that a line begins with, and the rest of the line."""
    for length in (2, 1):
        if tuple(words[:length]) in COMMANDS:
            return COMMANDS[tuple(words[:length])], words[length:]
    return None, words


@pytest.mark.parametrize("line", LINES)
def test_commands_that_are_told_exist_with_their_options(line):
    command, rest = command_of(shlex.split(line.replace("[", "").replace("]", ""))[1:])
    assert command is not None
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {word for word in rest if word.startswith("-")} <= known


def test_the_reference_names_every_command():
    named = {words for line in LINES for words in COMMANDS if line.split()[1 : 1 + len(words)] == list(words)}
    # "`taccl sketch list`, `show`" names two.
    for group, others in re.findall(r"`taccl (\w+) \w+`((?:, `\w+`)+)", PAGES[ROOT / "docs/reference.md"]):
        named |= {(group, word) for word in re.findall(r"\w+", others)}
    groups = {words for words, command in COMMANDS.items() if isinstance(command, click.Group)}
    assert set(COMMANDS) - groups - named == set()


def test_files_that_are_told_exist():
    """Sizes such as KiB/MiB are no files, and those below out/ are made by the example."""
    mentioned = re.findall(r"`([\w.-]*(?:/[\w.-]*)+)`", TEXT)
    ours = [name for name in mentioned if re.search(r"[a-z]{2}", name) and not name.startswith("out/")]
    assert "taccl_py/collective.py" in ours
    assert [name for name in ours if not (ROOT / name).exists() and not (PACKAGE / name).exists()] == []


def test_links_between_pages_lead_somewhere():
    links = [(page, link) for page, text in PAGES.items() for link in re.findall(r"[^!]\[[^\]]+\]\(([^)]+)\)", text)]
    assert {page.name for page in PAGES} - {"README.md"} <= {
        Path(link).name for page, link in links if page.name == "README.md"
    }
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_readme_has_the_versions_of_runtimes():
    rows = [line for line in README.splitlines() if re.match(r"\| `(executor|rccl|legacy|mscclpp)` \|", line)]
    assert rows == [
        f"| `{one.runtime}` | {one.versions} | {'yes' if one.loads_ours else 'no'} | {one.place} |" for one in RELEASES
    ]


def test_pictures_in_the_readme_exist():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert len(pictures) >= 2
    assert [name for name in pictures if not (ROOT / name).read_bytes().startswith(b"\x89PNG")] == []


def test_the_top_level_has_what_a_newcomer_expects_and_nothing_else():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    found = {name.split("/")[0] for name in tracked.stdout.splitlines()}
    assert {name for name in found if not name.startswith(".")} == {
        "LICENSE", "README.md", "docs", "pyproject.toml", "scripts", "sketches", "taccl_py", "tests", "topologies"
    }  # fmt: skip


def test_every_name_in_the_long_tail_is_that_of_a_test(request):
    assert request.config.stash[UNKNOWN_NAMES] == []
