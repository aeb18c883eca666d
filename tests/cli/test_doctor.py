"""``taccl doctor``: what works, what is only missing, and what is broken; exit codes tell them apart."""

import sys

import pytest

from taccl_py.cli import doctor as module
from taccl_py.errors import PackageMissing
from taccl_py.solvers import probe


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """Nothing of this machine that may be broken: no extras, and none of the variables."""
    monkeypatch.setattr(module, "EXTRAS", {})
    monkeypatch.setattr(module, "ROCM_PATHS", ())
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr(module, "_package_version", lambda _: ())
    for name in {name for names in module.VARIABLES.values() for name in names}:
        monkeypatch.delenv(name, raising=False)


def states(ended, section):
    return {check["name"]: check["state"] for check in ended.json["checks"] if check["section"] == section}


def test_what_comes_with_the_program_works(taccl):
    ended = taccl("doctor", "--json")
    assert (ended.code, ended.json["good"]) == (0, True)
    assert ended.json["checks"][0]["section"] == "python"
    solvers = states(ended, "solvers")
    assert [solvers[name] for name in ("cp-sat", "highs", "cbc")] == ["works"] * 3
    assert states(ended, "variables") == {"none": "missing"}


def test_the_table_says_the_same(taccl):
    out = taccl("doctor").out
    assert f"Python {sys.version.split()[0]}" in out
    assert all(word in out for word in ("cp-sat", "works", "mpiexec", "browser", "taccl install prints those to set"))


def test_a_solver_that_is_there_and_answers_wrongly_is_broken(taccl, monkeypatch):
    monkeypatch.setattr(probe, "_ask_cp_sat", lambda: 2.0)
    ended = taccl("doctor", "--json")
    assert (ended.code, states(ended, "solvers")["cp-sat"]) == (6, "broken")
    assert "answers 2.0 where 3 is right" in str(ended.json["checks"])


@pytest.mark.parametrize(("name", "state", "code"), [("glpk", "missing", 0), ("highs", "broken", 6)])
def test_only_what_comes_with_the_program_must_be_there(taccl, monkeypatch, name, state, code):
    find = probe.find_solver

    def without(asked):
        if asked == name:
            raise PackageMissing(f"solver {name} is not installed", "install it")
        return find(asked)

    monkeypatch.setattr(probe, "find_solver", without)
    ended = taccl("doctor", "--json")
    assert (ended.code, states(ended, "solvers")[name]) == (code, state)


def test_extras_are_imported(taccl, folder, monkeypatch):
    (folder / "fallen.py").write_text("raise ImportError('libnone.so: cannot open')")
    (folder / "noisy.py").write_text("print('hello')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(module, "EXTRAS", {"report": ("fallen", "noisy", "nobody_has_this")})
    ended = taccl("doctor", "--json")
    assert ended.code == 6
    assert states(ended, "extras") == {"fallen": "broken", "noisy": "works", "nobody_has_this": "missing"}
    details = {check["name"]: check["detail"] for check in ended.json["checks"]}
    assert details["fallen"] == "ImportError: libnone.so: cannot open; install it again"
    assert details["nobody_has_this"] == "pip install '.[report]' in a clone"


@pytest.mark.usefixtures("files")
def test_files_of_a_variable_are_verified(taccl, folder, monkeypatch):
    assert taccl("install", "algorithm.xml", "-o", "executor").code == 0
    monkeypatch.setenv("MSCCL_ALGO_DIR", str(folder / "executor"))
    monkeypatch.setenv("NCCL_MSCCL_ENABLE", "1")
    ended = taccl("doctor", "--json")
    assert ended.code == 0
    assert states(ended, "variables") == {"NCCL_MSCCL_ENABLE": "works", "MSCCL_ALGO_DIR": "works"}
    assert [one["good"] for one in ended.json["files"]] == [True, True]
    (good,) = (folder / "executor").glob("*.xml")
    good.write_text(good.read_text().replace('cnt="1"', 'cnt="2"', 1))
    ended = taccl("doctor", "--json")
    assert (ended.code, ended.json["good"]) == (4, False)
    assert f"{good.name}: bad: " in taccl("doctor").out


@pytest.mark.usefixtures("files")
def test_a_folder_of_synth_is_no_directory_that_a_runtime_loads(taccl, folder, monkeypatch):
    """Runtimes stop at schedule.json, although taccl check finds both files of the folder good."""
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "-o", "out").code == 0
    assert taccl("check", "out").code == 0
    monkeypatch.setenv("MSCCL_ALGO_DIR", str(folder / "out"))
    ended = taccl("doctor", "--json")
    assert ended.code == 4
    assert "stray-file" in str(ended.json["files"])


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"MSCCL_ALGO_DIR": "nowhere"}, 2, "nowhere: bad: cannot be read"),
        ({"MSCCL_ALGO_DIR": ""}, 2, "is empty; name files or a directory, or unset it"),
        ({"MSCCL_ALGO_DIR": ".", "NCCL_MSCCL_ENABLE": "0"}, 2, "is not read, as NCCL_MSCCL_ENABLE is 0; set it to 1"),
        ({"MSCCL_CONFIG": "nowhere.xml"}, 2, "is no file; name the configuration that taccl install writes"),
        ({"MSCCL_CONFIG": "notes.txt"}, 2, "loads no algorithm; name the configuration that taccl install writes"),
        ({"MSCCLPP_EXECUTION_PLAN_DIR": "empty"}, 2, "is no folder of MSCCL++ plans alone"),
        ({"MSCCLPP_CACHE_DIR": "empty"}, 0, "empty has no folder default, so no plan"),
        ({"MSCCL_XML_FILES": "nowhere.xml:other.xml"}, 2, "other.xml: bad: there is no such file"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_a_variable_that_leads_nowhere_is_named(taccl, folder, monkeypatch, variables, code, words):
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("hello", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = taccl("doctor")
    assert ended.code == code
    assert words in ended.out


@pytest.mark.usefixtures("files")
def test_every_kind_of_directory_that_install_writes_is_good(taccl, folder, monkeypatch):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    assert taccl("install", "plan.json", "-o", "plans", "--runtime", "mscclpp").code == 0
    assert taccl("install", "algorithm.xml", "-o", "legacy", "--runtime", "legacy").code == 0
    assert taccl("install", "algorithm.xml", "-o", "rccl", "--runtime", "rccl").code == 0
    variables = {
        "PYTHONPATH": f"{folder}:{folder / 'plans'}", "MSCCL_CONFIG": folder / "legacy" / "msccl-config.xml",
        "MSCCL_ALGO_DIR": folder / "rccl", "RCCL_MSCCL_ENABLE": "1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    ended = taccl("doctor", "--json")
    assert ended.code == 0, ended.out
    assert len(ended.json["files"]) == 7
    assert sum("for rccl" in one["facts"] for one in ended.json["files"]) == 2


def versions(ended):
    return [
        (check["name"], check["state"], check["detail"])
        for check in ended.json["checks"]
        if check["section"] == "versions"
    ]


@pytest.mark.usefixtures("files")
def test_versions_of_a_runtime_that_load_nothing_are_warned_of(taccl, folder, monkeypatch):
    assert taccl("install", "algorithm.xml", "-o", "rccl", "--runtime", "rccl").code == 0
    assert versions(taccl("doctor", "--json")) == []
    monkeypatch.setenv("MSCCL_ALGO_DIR", str(folder / "rccl"))
    assert [row[:2] for row in versions(taccl("doctor", "--json"))] == [("executor", "works"), ("executor", "warning")]
    monkeypatch.setenv("RCCL_MSCCL_ENABLE", "1")
    ended = taccl("doctor", "--json")
    assert ended.code == 0
    assert {row[0] for row in versions(ended)} == {"rccl"}
    assert any(state == "warning" and "7.13" in detail for _, state, detail in versions(ended))


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [("7.2.4-9\n", 0, "7.2 here may load files"), ("7.13.0-42", 2, "7.13 here loads no files")],
)
@pytest.mark.usefixtures("files")
def test_the_rocm_that_is_installed_counts(taccl, folder, monkeypatch, text, code, says):
    assert taccl("install", "algorithm.xml", "-o", "rccl", "--runtime", "rccl").code == 0
    (folder / "rocm" / ".info").mkdir(parents=True)
    (folder / "rocm" / ".info" / "version").write_text(text, encoding="utf-8")
    for name, value in (
        ("ROCM_PATH", folder / "rocm"),
        ("MSCCL_ALGO_DIR", folder / "rccl"),
        ("RCCL_MSCCL_ENABLE", "1"),
    ):
        monkeypatch.setenv(name, str(value))
    ended = taccl("doctor", "--json")
    assert ended.code == code
    assert versions(ended)[-1][0] == "ROCm"
    assert versions(ended)[-1][2].startswith(says)


@pytest.mark.parametrize(
    ("version", "variable", "says"),
    [
        ((0, 8), "MSCCLPP_CACHE_DIR", ["0.8 here does not read plans from MSCCLPP_CACHE_DIR"]),
        ((0, 9), "MSCCLPP_EXECUTION_PLAN_DIR", ["0.9 here does not read plans from MSCCLPP_EXECUTION_PLAN_DIR"]),
        (
            (0, 9), "MSCCLPP_CACHE_DIR",
            ["0.9 here does not look for default/allreduce_4nodes_1K_64K.json", "0.9 here does not look for default/mine.json"],
        ),
        ((0, 10), "MSCCLPP_CACHE_DIR", ["0.10 here does not look for default/mine.json"]),
        ((1, 0), "MSCCLPP_CACHE_DIR", ["1.0 here does not look for default/mine.json"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_names_that_the_installed_mscclpp_does_not_look_for_are_told(
    taccl, folder, monkeypatch, version, variable, says
):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    (folder / "cache" / "default").mkdir(parents=True)
    for name in ("allreduce_4nodes_1K_64K", "mine"):
        (folder / "cache" / "default" / f"{name}.json").write_bytes((folder / "plan.json").read_bytes())
    monkeypatch.setattr(module, "_package_version", lambda _: version)
    monkeypatch.setenv(variable, str(folder / "cache"))
    found = [
        detail for _, state, detail in versions(taccl("doctor", "--json")) if state == "warning" and " here " in detail
    ]
    assert [detail.split(";")[0] for detail in found] == says
