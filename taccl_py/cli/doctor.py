"""``taccl doctor``: does what is installed work, and would runtimes load what their variables name."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from taccl_py.cli.options import echo_json, json_option
from taccl_py.errors import InputError, InvalidArtifact, PackageMissing, Unsupported
from taccl_py.releases import (
    DEFAULT_FOLDER,
    DEFAULT_NAMES,
    MSCCLPP_REGISTERS,
    ROCM_WITHOUT_MSCCL,
    loaded_by,
    releases_of,
    warnings_about,
)
from taccl_py.runtimes import EXECUTOR, LEGACY, MSCCLPP, RCCL, Runtime

# Modules of every extra; each is imported in a process of its own, as some start threads or end the program.
EXTRAS = {
    "mpi": ("mpi4py.MPI",),
    "torch": ("torch",),
    "report": ("plotly", "matplotlib"),
    "dask": ("distributed",),
    "mscclpp": ("mscclpp",),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge", "firefox", "safari")
# Variables that decide what runtimes load.
VARIABLES = {
    runtime.name: tuple(dict.fromkeys(name for release in releases_of(runtime.name) for name in release.variables))
    for runtime in (EXECUTOR, RCCL, LEGACY, MSCCLPP)
}
ROCM_PATHS = ("/opt/rocm",)  # where ROCm is if ROCM_PATH does not say it
# Far longer than an import takes on a busy machine; what has not ended by then never will.
_HANGS_SECONDS = 300


class State(StrEnum):
    """State of a checked item."""

    WORKS = "works"
    MISSING = "missing"  # not installed or not set, which is no fault
    WARNING = "warning"  # some versions of a runtime do not what its variables say
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    section: str
    name: str
    state: State
    detail: str


@click.command(short_help="Find out whether solvers, extras and the runtimes' variables work.")
@click.option(
    "--runtime",
    type=click.Choice([EXECUTOR.name, RCCL.name]),
    default=None,
    help="Runtime that loads MSCCL_ALGO_DIR. Default: RCCL where one of its variables is set, else the executor.",
)
@json_option
def doctor(runtime: str | None, as_json: bool) -> int:
    """Find out whether what is installed works, and whether runtimes would load what their environment variables name.

    Python, every solver (asked for a small answer), the extras (imported), MPI, a browser for report pages, and the variables of the
    runtimes: every file of a directory that one of them names is verified, as taccl check does. Warnings say which versions of a
    runtime whose variables are set pass over them; ROCm's and MSCCL++'s versions are looked up here.

    Exit code 0 if all that is there works: what is not installed or not set is no fault. 4 if a file that a variable names would not
    load or run, 2 if one cannot be read, 6 if something installed does not work, 7 if a file uses what the verifier does not know.

    \b
    Examples:
      taccl doctor
      taccl doctor --json
    """
    checks = [*_python(), *_solvers(), *_extras(), *_programs()]
    variables, results = _variables(os.environ, runtime)
    checks += [*variables, *_versions(os.environ, runtime)]
    codes = {result["exit_code"] for result in results} - {0}
    broken = {check.section for check in checks if check.state is State.BROKEN}
    if broken & {"variables", "versions"}:
        codes.add(InputError.exit_code)
    if broken - {"variables", "versions"}:
        codes.add(PackageMissing.exit_code)
    if as_json:
        echo_json({"good": not codes, "checks": [asdict(check) for check in checks], "files": results})
    else:
        _print(checks, results)
    order = (InvalidArtifact.exit_code, InputError.exit_code, PackageMissing.exit_code, Unsupported.exit_code)
    return next((code for code in order if code in codes), 0)


def _print(checks: list[Check], results: list[dict[str, Any]]) -> None:
    from taccl_py.cli.check import print_result
    from taccl_py.report.tables import plain_table, print_table

    rows = [(check.section, check.name, str(check.state), check.detail) for check in checks]
    print_table(plain_table("Doctor", ("", "what", "state", "details"), rows))
    for result in results:
        print_result(result, verbose=False)


def _python() -> Iterator[Check]:
    from taccl_py import __version__

    where = f"{platform.python_implementation()} on {platform.system()} {platform.machine()}"
    yield Check("python", f"Python {platform.python_version()}", State.WORKS, f"{where}; taccl {__version__}")


def _solvers() -> Iterator[Check]:
    from taccl_py.solvers.probe import probe_solvers

    for probe in probe_solvers():
        state = State.MISSING if probe.is_missing else State.BROKEN if probe.fault else State.WORKS
        yield Check("solvers", probe.name, state, probe.fault or probe.version)


def _extras() -> Iterator[Check]:
    for extra, modules in EXTRAS.items():
        for module in modules:
            yield _imported(extra, module)


def _imported(extra: str, module: str) -> Check:
    from importlib.util import find_spec

    top = module.split(".")[0]
    if find_spec(top) is None:
        how = "build MSCCL++ from its source" if extra == MSCCLPP.name else f"pip install '.[{extra}]' in a clone"
        return Check("extras", top, State.MISSING, how)
    # The last line, as some modules print when they are imported.
    program = (
        f"import importlib, importlib.metadata as m\nimportlib.import_module({module!r})\nprint()\n"
        f"try: print(m.version({top!r}))\nexcept m.PackageNotFoundError: print()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=_HANGS_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("extras", top, State.BROKEN, f"its import does not end within {_HANGS_SECONDS} s")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"its import ends with {done.returncode}"])[-1]
        return Check("extras", top, State.BROKEN, f"{reason}; install it again")
    return Check("extras", top, State.WORKS, (done.stdout.splitlines() or [""])[-1])


def _programs() -> Iterator[Check]:
    launcher = next(filter(None, map(shutil.which, ("mpiexec", "mpirun"))), None)
    yield Check(
        "mpi", "mpiexec", State.WORKS if launcher else State.MISSING,
        launcher or "install an MPI; --with mpi is started with it",
    )  # fmt: skip
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    found = browser or "only pages (report.html) are for one; png and svg need none"
    yield Check("browser", "browser", State.WORKS if browser else State.MISSING, found)


def _variables(environ: Mapping[str, str], asked: str | None) -> tuple[list[Check], list[dict[str, Any]]]:
    """Checks of the runtimes' variables, and results on the files that they name."""
    from taccl_py.cli.check import verify_file, verify_loaded, verify_plans_of

    checks: list[Check] = []
    results: list[dict[str, Any]] = []
    scanned = _scanning(environ, asked)
    verifiers = {
        "MSCCL_ALGO_DIR": lambda path: verify_loaded(path, scanned),
        "MSCCL_CONFIG": lambda path: verify_loaded(path.parent, LEGACY),
        "MSCCL_XML_FILES": lambda path: [verify_file(path, LEGACY)],
        "MSCCLPP_CACHE_DIR": verify_plans_of,
        "MSCCLPP_EXECUTION_PLAN_DIR": verify_plans_of,
    }
    for name in dict.fromkeys(name for names in VARIABLES.values() for name in names):
        value = environ.get(name)
        if value is None:
            continue
        if name == "MSCCLPP_CACHE_DIR" and value and not (Path(value) / DEFAULT_FOLDER).is_dir():
            checks.append(Check("variables", name, State.WORKS, f"{value} has no folder {DEFAULT_FOLDER}, so no plan"))
            continue
        paths = [part for part in value.split(":") if part] if name == "MSCCL_XML_FILES" else [value]
        fault = _fault(name, value, environ) if name in verifiers else ""
        checks.append(
            Check("variables", name, State.BROKEN if fault else State.WORKS, f"{value}{fault and ': '}{fault}")
        )
        results += [
            result
            for path in paths
            for result in (verifiers[name](Path(path)) if name in verifiers and not fault else ())
        ]
    for folder in _plan_folders(environ):
        checks.append(Check("variables", "PYTHONPATH", State.WORKS, f"{folder} has plans that taccl_plans registers"))
        results += verify_plans_of(folder)
    if not checks:
        checks.append(Check("variables", "none", State.MISSING, "taccl install prints those to set"))
    return checks, results


def _plan_folders(environ: Mapping[str, str]) -> list[Path]:
    """Folders of registered plans among those in which Python looks for modules."""
    from taccl_py.execute.taccl_plans import TABLE

    folders = dict.fromkeys(part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part)
    return [Path(folder) for folder in folders if (Path(folder) / TABLE).is_file()]


def _scanning(environ: Mapping[str, str], asked: str | None) -> Runtime:
    """Runtime that scans MSCCL_ALGO_DIR."""
    if asked is not None:
        return RCCL if asked == RCCL.name else EXECUTOR
    return RCCL if any(name in environ for name in VARIABLES[RCCL.name] if name.startswith("RCCL_")) else EXECUTOR


def _fault(name: str, value: str, environ: Mapping[str, str]) -> str:
    """Fault of a variable itself; empty if its files are to be checked."""
    if not value:
        return "is empty; name files or a directory, or unset it"
    if name == "MSCCL_CONFIG" and not os.path.isfile(value):
        return "is no file; name the configuration that taccl install writes"
    if name == "MSCCL_CONFIG" and "<load " not in Path(value).read_text(encoding="utf-8", errors="replace"):
        return "loads no algorithm; name the configuration that taccl install writes"
    enabling = [v for v in environ if v.endswith("MSCCL_ENABLE")]
    if name == "MSCCL_ALGO_DIR" and enabling and all(environ[v] == "0" for v in enabling):
        return f"is not read, as {' and '.join(enabling)} is 0; set it to 1"
    return ""


def _versions(environ: Mapping[str, str], asked: str | None) -> Iterator[Check]:
    """Which versions of the runtimes whose variables are set load files, and what is installed of them."""
    set_here = {runtime for runtime, names in VARIABLES.items() if any(name in environ for name in names)}
    set_here -= {EXECUTOR.name, RCCL.name} - {_scanning(environ, asked).name}
    set_here |= {MSCCLPP.name} if _plan_folders(environ) else set()
    for runtime in sorted(set_here):
        yield Check("versions", runtime, State.WORKS, f"loaded by {loaded_by(runtime)}")
        for warning in warnings_about(runtime):
            yield Check("versions", runtime, State.WARNING, warning)
    rocm, mscclpp = _rocm_version(environ), _package_version(MSCCLPP.name)
    if RCCL.name in set_here and rocm:
        has = rocm < ROCM_WITHOUT_MSCCL
        what = (
            "may load files" if has else "loads no files: its RCCL has no MSCCL; unset the variables, or use ROCm 7.2"
        )
        yield Check("versions", "ROCm", State.WORKS if has else State.BROKEN, f"{'.'.join(map(str, rocm))} here {what}")
    if MSCCLPP.name in set_here and mscclpp:
        yield from _mscclpp_faults(environ, mscclpp)


def _mscclpp_faults(environ: Mapping[str, str], version: tuple[int, ...]) -> Iterator[Check]:
    """Variables that the installed MSCCL++ passes over, and plans that it does not look for."""
    here = f"{'.'.join(map(str, version))} here"
    registers = version >= MSCCLPP_REGISTERS
    unread = "MSCCLPP_EXECUTION_PLAN_DIR" if registers else "MSCCLPP_CACHE_DIR"
    if unread in environ:
        yield Check("versions", MSCCLPP.name, State.WARNING, f"{here} does not read plans from {unread}")
    if registers and "MSCCLPP_CACHE_DIR" in environ:
        key = "0.9" if version[:2] == MSCCLPP_REGISTERS else "0.10"
        known = {name.file for name in DEFAULT_NAMES[key]}
        found = {path.name for path in (Path(environ["MSCCLPP_CACHE_DIR"]) / DEFAULT_FOLDER).glob("*.json")}
        for name in sorted(found - known):
            what = f"{here} does not look for {DEFAULT_FOLDER}/{name}; register it with taccl_plans, which taccl install writes"
            yield Check("versions", MSCCLPP.name, State.WARNING, what)


def _rocm_version(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Version of the ROCm that is installed; empty if none is found."""
    for place in (environ.get("ROCM_PATH"), *ROCM_PATHS):
        if place:
            with suppress(OSError, UnicodeDecodeError):
                return _numbers((Path(place) / ".info" / "version").read_text(encoding="utf-8"))
    return ()


def _package_version(name: str) -> tuple[int, ...]:
    with suppress(metadata.PackageNotFoundError):
        return _numbers(metadata.version(name))
    return ()


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with, as (7, 13) of 7.13.0-42."""
    found = re.match(r"\s*(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()
