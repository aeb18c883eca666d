"""Options that several commands share, and what they become."""

from __future__ import annotations

import json
import math
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.shell_completion import CompletionItem

from taccl_py.api.policy import EFFORTS, budget, chosen_runtime
from taccl_py.collective import Kind, parse_kind
from taccl_py.discover.gpus import AUTO, GPU_MODELS, GpuModel, gpu_names, parse_gpu
from taccl_py.errors import InputError
from taccl_py.jsonio import require_writable
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.program import Protocol
from taccl_py.runtimes import EXECUTOR, LEGACY_CONFIG, MSCCLPP, RUNTIMES
from taccl_py.solvers.limits import Limits
from taccl_py.topology.degrade import (
    Degradation,
    LinkChoice,
    SlowLink,
    SlowPort,
    parse_link,
    parse_slow_link,
    parse_slow_port,
)
from taccl_py.topology.failures import parse_sorts
from taccl_py.topology.model import Medium
from taccl_py.units import Left, SizeRange, parse_left, parse_ranks, parse_size, parse_size_range

if TYPE_CHECKING:
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.lowering.mscclpp import PlanOptions
    from taccl_py.pipeline.resolve import Request
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.topology.model import Topology

F = TypeVar("F", bound=Callable[..., Any])


T = TypeVar("T")

_WORDS = "taccl.words"
# Output in the command that makes something again: the same search writes the same summary wherever to.
_ANY_OUTPUT = "out/"


class ParsedType(click.ParamType, Generic[T]):  # type: ignore[type-arg,unused-ignore]
    """A word of the command line that a function of the library makes something of.

    Parameters
    ----------
    name
        Name in help texts.
    kind
        Type of its value; values of this type, such as defaults, stay as they are.
    parse
        Function that makes the value of a text.
    names
        Words that shells complete.
    """

    def __init__(self, name: str, kind: type[T], parse: Callable[[str], T], names: Iterable[str] = ()) -> None:
        self.name = name
        self._kind, self._parse, self._names = kind, parse, tuple(names)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Complete the names."""
        return [CompletionItem(name) for name in self._names if name.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ARG002
        """Parse, naming the option in errors."""
        if isinstance(value, self._kind):
            return value
        try:
            return self._parse(value)
        except InputError as error:
            name = param.opts[0] if param is not None and param.opts else None
            raise InputError(error.what, path="command line", field=name) from None


class FiniteRange(click.FloatRange):
    """A range of finite numbers: nan, which no comparison refuses, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse nan and inf."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class OutputType(click.Path):  # type: ignore[type-arg,unused-ignore]
    """A file or a directory to write to, which stdout is not.

    Parameters
    ----------
    probed
        Whether it is refused at once where nothing can be written: not for what may only be read, or is written by one of several
        processes.
    is_file
        Whether it can only be a file.
    """

    def __init__(self, *, probed: bool = True, is_file: bool = False) -> None:
        super().__init__(path_type=Path)
        self._probed, self._is_file = probed, is_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse the dash that means stdout elsewhere, and what cannot be written."""
        if str(value) == "-":
            self.fail("- (stdout) is not possible here, name a file or a directory", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self._probed:
            require_writable(path, is_file=self._is_file)
        return path


class RecordedCommand(click.Command):
    """A command that keeps its words for `words_again`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words, then parse them."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


def words_again() -> str:
    """Return the running command as one types it to make the same again, into out/; empty if it is not kept."""
    context = click.get_current_context(silent=True)
    words: tuple[str, ...] = context.meta.get(_WORDS, ()) if context is not None else ()
    kept, skipped = [], False
    for word in words:
        if not skipped and word != "--json" and not word.startswith(("-o", "--output=")):
            kept += [] if word == "--output" else [word]
        skipped = not skipped and word in ("-o", "--output")
    return shlex.join([*context.command_path.split(), *kept, "-o", _ANY_OUTPUT]) if context is not None and kept else ""


def command_fact() -> dict[str, str]:
    """Fact of a summary: the command that makes the same again; nothing if it is not kept."""
    again = words_again()
    return {"command": again} if again else {}


def _parse_left(text: str) -> Left:
    """Sizes left to NCCL; the word before them is a collective."""
    left = parse_left(text)
    return replace(left, kind=str(parse_kind(left.kind))) if left.kind else left


SIZE = ParsedType("size", int, parse_size)
SIZE_RANGE = ParsedType("range", SizeRange, parse_size_range)
LEFT = ParsedType("sizes", Left, _parse_left)
RANKS = ParsedType("ranks", tuple, parse_ranks)
KIND = ParsedType("collective", Kind, parse_kind, map(str, Kind))
GPU: ParsedType[GpuModel | None] = ParsedType("gpu", GpuModel, parse_gpu, (AUTO, *GPU_MODELS))
LINK = ParsedType("link", LinkChoice, parse_link)
SLOW_LINK = ParsedType("link:part", SlowLink, parse_slow_link)
SLOW_PORT = ParsedType("port:part", SlowPort, parse_slow_port)
FAILURES = ParsedType("sorts", tuple, parse_sorts)
OUTPUT = OutputType()
OUTPUT_FILE = OutputType(is_file=True)
UNPROBED_OUTPUT = OutputType(probed=False)


def with_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """The command with options, which its help page lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def degradation_options(command: F) -> F:
    """Options that say which links and ports of the machine are missing or slow."""
    decorators = [
        click.option("--without-link", type=LINK, multiple=True,
                     help="Links that are missing: 0-3 for both directions, '0->3' for one. May be repeated."),
        click.option("--slow-link", type=SLOW_LINK, multiple=True,
                     help="Links with a part of their bandwidth: 0-3:0.5. May be repeated."),
        click.option("--without-port", multiple=True, metavar="NAMES",
                     help="Ports (NICs) that are missing, with their links: 'node 5 ib3 *'. May be repeated."),
        click.option("--slow-port", type=SLOW_PORT, multiple=True,
                     help="Ports with a part of their bandwidth: 'node 7 *:0.5' is a slow node. May be repeated."),
    ]  # fmt: skip
    return with_options(command, decorators)


def make_request(values: dict[str, Any]) -> Request:
    """Request for the collective of some ranks of a machine that the command line names, with what is usual for all else."""
    from taccl_py.pipeline.resolve import Request

    return Request(
        topology=values["topology"],
        kind=values["collective"],
        sketch=values["sketch"],
        nodes=values["nodes"],
        ranks=values["ranks"],
        root=values["root"],
    )


def make_degradation(values: dict[str, Any]) -> Degradation:
    """Degradation from the parsed command-line values of `degradation_options`."""
    return Degradation(
        tuple(values["without_link"]),
        tuple(values["slow_link"]),
        tuple(values["without_port"]),
        tuple(values["slow_port"]),
    )


def gpu_option(purpose: str) -> Callable[[F], F]:
    """Option that names the GPUs of the machine, None for auto, which the purpose explains."""
    words = f"GPUs of the machine, by model or generation: {gpu_names()}. {purpose}"
    return click.option("--gpu", type=GPU, default=AUTO, show_default=True, help=words)


def inside_option(default: str) -> Callable[[F], F]:
    """Option ``--inside`` of commands that make topologies, with a sentence that says the default."""
    words = (
        "What joins the ranks of a node, which decides on protocols and not on times: LL128 is for nvlink alone "
        f"(which stands for xGMI too). {default}"
    )
    return click.option("--inside", type=click.Choice([str(medium) for medium in Medium]), default=None, help=words)


def near_nics_option(default: str) -> Callable[[F], F]:
    """Option ``--near-nics`` of commands that make topologies, with a sentence that says the default."""
    words = (
        "NICs write into the memory of GPUs themselves (GPUDirect RDMA), over PCIe switches alone (NCCL's paths PIX and PXB): "
        f"then LL128 is for several nodes too. {default}"
    )
    return click.option("--near-nics", is_flag=True, help=words)


def runtime_profile_option(command: F) -> F:
    """Option ``--runtime-profile``: name or file of a runtime profile, or ``auto``; see `chosen_profile`."""
    return click.option(
        "--runtime-profile",
        default="auto",
        show_default=True,
        metavar="NAME|FILE",
        help="Costs of launch, protocols and threadblocks: a shipped profile, a file, or neutral for links and ports alone; auto takes "
        "that of the runtime on the machine's GPUs.",
    )(command)


def chosen_profile(asked: str, runtime: str, topology: Topology) -> RuntimeProfile:
    """Runtime profile that `runtime_profile_option` names; why it is neutral although none was asked for is told on stderr.

    Parameters
    ----------
    asked
        Value of the option.
    runtime
        Name of the runtime: ``executor``, ``rccl``, ``legacy`` or ``mscclpp``.
    topology
        The machine.

    Raises
    ------
    InputError
        If the profile does not exist, is wrong, or does not fit the runtime or the machine.
    """
    from taccl_py.profiles.catalog import select_profile

    selection = select_profile(asked, runtime, topology)
    if selection.note:
        click.echo(f"note: times are those of links and ports alone, as {selection.note}", err=True)
    return selection.profile


def lowering_options(*more: str) -> Callable[[F], F]:
    """Options that say for what a program is made: a runtime for XML, or one of some more."""
    what = "program" if more else "XML"
    decorators = [
        runtime_option(f"Runtime that will load the {what}", *more),
        click.option("--placement", type=click.Choice([str(p) for p in CallPlacement]), default="both", show_default=True,
                     help=f"Buffers for which the {what} is right: in place, out of place, or both."),
        click.option("--protocol", type=click.Choice(["auto", *map(str, Protocol)]), default="auto", show_default=True,
                     help="NCCL protocol; auto is what is fastest at the size."),
        click.option("--instances", type=click.IntRange(1, 32), default=None,
                     help="Cut every chunk into this many parts with threadblocks of their own. Default: what is fastest under the runtime "
                     "profile, and 1 without one."),
        click.option("--min-bytes", type=SIZE, default=None, help=f"Smallest size for which the runtime may use the {what}."),
        click.option("--max-bytes", type=SIZE, default=None, help=f"Largest size for which the runtime may use the {what}."),
    ]  # fmt: skip

    def decorate(command: F) -> F:
        return with_options(command, decorators)

    return decorate


def runtime_option(purpose: str, *more: str) -> Callable[[F], F]:
    """Option that names a runtime, of those for XML or of some more; see `taccl_py.api.policy.chosen_runtime`."""
    names = "legacy MSCCL, or MSCCL++" if more else "or legacy MSCCL"
    words = f"{purpose}: MSCCL executor for NCCL, RCCL, {names}; auto is RCCL on GPUs of AMD, else the executor."
    choice = click.Choice([AUTO, *RUNTIMES, *more])
    return click.option("--runtime", type=choice, default=AUTO, show_default=True, help=words)


def told_runtime_option(purpose: str, *more: str) -> Callable[[F], F]:
    """Option that names the runtime of files; see `told_runtime`."""
    words = f"{purpose}: auto is what a summary or an {LEGACY_CONFIG} beside the files says, else the executor."
    choice = click.Choice([AUTO, *RUNTIMES, *more])
    return click.option("--runtime", type=choice, default=AUTO, show_default=True, help=words)


def told_runtime(asked: str, files: Iterable[Path], *more: str) -> tuple[str, str]:
    """Name of the runtime of files, or of folders with some, one for XML or of some more, and words on it where it is but assumed.

    Raises
    ------
    InputError
        If they are for several, or a summary is wrong.
    """
    from taccl_py.report.summaries import told_runtimes

    if asked != AUTO:
        return asked, ""
    told = sorted(told_runtimes(files, {*RUNTIMES, *more}))
    if len(told) > 1:
        raise InputError(f"files are for {' and '.join(told)}; name one", path="command line", field="--runtime")
    return (told[0], "") if told else (EXECUTOR.name, f"{EXECUTOR.name} is assumed, --runtime names another one")


def make_lowering_options(values: dict[str, Any], topology: Topology) -> LoweringOptions:
    """Lowering options of parsed command-line values, for a machine.

    Raises
    ------
    InputError
        If the range of sizes is upside down.
    """
    from taccl_py.lowering.lower import LoweringOptions

    least, most = values["min_bytes"] or 0, values["max_bytes"]
    if most is not None and most < least:
        raise InputError(
            f"{most} bytes are fewer than --min-bytes, {least}; write a larger size",
            path="command line",
            field="--max-bytes",
        )
    return LoweringOptions(
        runtime=chosen_runtime(values["runtime"], topology),
        placement=CallPlacement(values["placement"]),
        protocol=None if values["protocol"] == "auto" else Protocol(values["protocol"]),
        instances=values["instances"] or 1,
        min_bytes=least,
        max_bytes=most,
    )


def make_plan_options(
    values: dict[str, Any], topology: Topology, *, by_switch: bool = False
) -> tuple[PlanOptions, str | None]:
    """Options of an MSCCL++ plan of parsed command-line values, and its protocol if one is asked for.

    Raises
    ------
    InputError
        If the range of sizes is upside down, or plans have no such protocol.
    """
    from taccl_py.lowering.mscclpp import PlanOptions
    from taccl_py.lowering.plan import PACKETS, SIMPLE

    known = (SIMPLE,) if by_switch else (SIMPLE, PACKETS)
    protocol = None if values["protocol"] == AUTO else str(values["protocol"])
    if protocol not in (None, *known):
        raise InputError(
            f"plans for {MSCCLPP.title}{' by switch' if by_switch else ''} have protocol {' or '.join(known)}, found {protocol}; "
            "leave --protocol out",
            path="command line",
            field="--protocol",
        )
    given = make_lowering_options({**values, "protocol": AUTO, "runtime": AUTO}, topology)
    options = PlanOptions(given.placement, given.instances, given.min_bytes, given.max_bytes, values.get("name"))
    return options, protocol


def budget_options(takes: str, limits: str = "the search") -> Callable[[F], F]:
    """Options for how long a command searches; `takes` says what normal takes, `limits` what a time limit is of."""

    def decorate(command: F) -> F:
        options = [
            click.option("--effort", type=click.Choice(list(EFFORTS)), default=None,
                         help="Work of the search, the same on every machine, so that the files are too: normal, quick (a quarter) or "
                              f"thorough (five times). Normal takes about {takes}. Default: normal, or with --time-limit alone no limit but that."),
            click.option("--time-limit", type=click.FloatRange(0.1), default=None,
                         help=f"Seconds of the clock after which {limits} ends with what it has; with --effort, whichever is first."),
        ]  # fmt: skip
        return with_options(command, options)

    return decorate


def budgeted(values: dict[str, Any], seconds: float, stop: threading.Event) -> Limits:
    """Limits by the options `budget_options` and ``--seed``; so many seconds are effort normal."""
    limits = Limits(seed=values["seed"], stop=stop)
    return budget(limits, seconds, effort=values["effort"], time_limit=values["time_limit"])


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of tables.")


def require_room_for_json(output: Path, *, as_json: bool) -> None:
    """Refuse --json where the file itself goes to stdout.

    Raises
    ------
    InputError
        If both are asked for.
    """
    if as_json and str(output) == "-":
        raise InputError(
            "tells of the file that is written, and -o - writes the file to stdout; leave one of the two out",
            path="command line",
            field="--json",
        )


def refuse_own_input(output: Path | None, *inputs: str | Path) -> None:
    """Refuse an output that is one of the files that the command reads, of which another format would be left.

    Raises
    ------
    InputError
        If it is one of them.
    """
    if output is None or not output.is_file():
        return
    if any(os.path.isfile(each) and os.path.samefile(output, each) for each in inputs):
        raise InputError("is the file that is read, and would be lost; name another output", path=str(output))


def echo_json(value: Any) -> None:
    """Print a JSON value on stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def in_json(notes: Iterable[str]) -> dict[str, list[str]]:
    """The key of an object for --json under which notes for people stand, as texts without the word."""
    return {"notes": [note.removeprefix("note: ") for note in notes if note]}
