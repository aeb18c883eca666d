"""Ask for it: the command line. Options become pipeline calls, results become tables or JSON.

Exit codes: 0 good, 2 bad input, 3 no schedule, 4 the verifier finds errors, 5 a runtime's limit, 6 a package is missing,
130 interrupted before there was an answer (`taccl_py.errors`), 141 the reader of the output has gone away. Data goes to stdout,
progress and errors to stderr.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from taccl_py import __version__
from taccl_py.cli.completion import matching, with_names
from taccl_py.cli.interrupt import interrupts_end
from taccl_py.cli.streams import CLOSED_PIPE_EXIT_CODE, PipeClosed, standard_streams
from taccl_py.errors import InputError, Interrupted, SynthesisError, TacclError
from taccl_py.spelling import did_you_mean

# A group without a command prints its help; click has an error for that since 8.2.
_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)

_CLICKS_QUESTION = re.compile(r"\s*\(?Did you mean [^?]*\?\)?", re.IGNORECASE)
_QUOTED = re.compile(r"'([^']*)'")

_COMMANDS = {
    "synth": ("taccl_py.cli.synth:synth", "Synthesize an algorithm and write schedule, MSCCL XML and summary."),
    "reshard": ("taccl_py.cli.demands:reshard", "Move a tensor from one sharding over a mesh of ranks to another."),
    "replan": (
        "taccl_py.cli.replan:replan",
        "Find a new schedule after a failure, from the old one and by a search.",
    ),
    "pareto": (
        "taccl_py.cli.pareto:pareto",
        "Enumerate synchronous algorithms between latency and bandwidth, with proofs.",
    ),
    "groups": (
        "taccl_py.cli.groups:groups",
        "Synthesize collectives of several process groups that run at once.",
    ),
    "replicate": (
        "taccl_py.cli.replicate:replicate",
        "Solve one root of a symmetric machine and replicate it, for thousands of ranks.",
    ),
    "bound": ("taccl_py.cli.bound:bound", "Print lower bounds on the time of any algorithm."),
    "compare": ("taccl_py.cli.compare:compare", "Compare our algorithms with NCCL's, for every size."),
    "check": ("taccl_py.cli.check:check", "Verify schedules, MSCCL XML files and MSCCL++ plans."),
    "lower": (
        "taccl_py.cli.lower:lower_command",
        "Lower a schedule to MSCCL XML, an MSCCL++ plan, traces or channels.",
    ),
    "convert": ("taccl_py.cli.convert:convert_command", "Make MSCCL XML of any tool ready for a runtime."),
    "install": ("taccl_py.cli.install:install", "Put algorithm files where a runtime loads them."),
    "simulate": (
        "taccl_py.cli.simulate:simulate",
        "Replay a schedule, an MSCCL XML file or an MSCCL++ plan for any size.",
    ),
    "run": ("taccl_py.cli.run:run_command", "Execute a schedule, an MSCCL XML file or an MSCCL++ plan on real data."),
    "show": (
        "taccl_py.cli.show:show",
        "Show what a schedule, an MSCCL XML file or an MSCCL++ plan does, in the terminal.",
    ),
    "trace": ("taccl_py.cli.show:trace", "Write a trace for chrome://tracing and Perfetto."),
    "report": ("taccl_py.cli.report:report", "Make a page, a picture or Markdown of results."),
    "sweep": (
        "taccl_py.cli.sweep:sweep",
        "Synthesize a matrix of instances into a folder, and resume where it stopped.",
    ),
    "regress": ("taccl_py.cli.regress:regress", "Find out whether algorithms have got worse."),
    "topo": ("taccl_py.cli.topo:topo", "List, show, import, fit and compare topologies."),
    "profile": ("taccl_py.cli.profile:profile", "Measure alpha, beta and the ports that links share."),
    "runtime": (
        "taccl_py.cli.runtime:runtime",
        "List, show and fit runtime profiles; which versions of runtimes load what.",
    ),
    "sketch": ("taccl_py.cli.sketch:sketch", "List, show, validate and suggest sketches."),
    "doctor": (
        "taccl_py.cli.doctor:doctor",
        "Find out whether solvers, extras and the runtimes' variables work.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are called, so that --help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the work."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), name)
        return with_names(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing them, and options."""
        commands = [(name, text) for name, (_, text) in _COMMANDS.items()]
        return [*matching(commands, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="taccl")
@click.option("--debug", is_flag=True, help="Show the traceback of errors.")
def cli(debug: bool) -> None:
    """Synthesize collective-communication algorithms for GPU clusters and lower them to MSCCL XML.

    \b
    Example:
      taccl synth ndv2 allgather --nodes 2 --sketch sk-1 --size 16MB -o out/
      taccl check out/schedule.json out/algorithm.xml

    Exit codes: 0 good, 2 bad input, 3 no schedule, 4 the verifier finds errors, 5 a limit of the runtime, 6 a package is missing,
    7 a file uses what the verifier does not know, 130 interrupted (Ctrl-C, SIGTERM, SIGHUP) before there was an answer, 141 the
    reader of the output has gone away.
    """


def collect_rarely() -> None:
    """Let Python look less often for garbage in cycles, which it does in vain among the millions of records of a large program."""
    gc.set_threshold(100_000, 20, 50)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: the one place where an error becomes a line and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    collect_rarely()
    with standard_streams():
        sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    """Run the command line; returns its exit code."""
    try:
        with interrupts_end():
            result: Any = cli.main(args=arguments, prog_name="taccl", standalone_mode=False)
            sys.stdout.flush()
    except PipeClosed:
        return CLOSED_PIPE_EXIT_CODE
    except _NO_ARGUMENTS as error:
        error.show(file=sys.stderr)
        return InputError.exit_code
    except (Exception, KeyboardInterrupt) as error:
        found = _sentence(error)
        if found is None or ("--debug" in arguments and not isinstance(error, click.Abort | KeyboardInterrupt)):
            raise
        _complain(found[0])
        # Python ends itself by SIGINT where an interrupt once left a string that was being executed, as in the making of a dataclass,
        # although it was caught; the next string resets that.
        exec("")
        return found[1]
    return result if isinstance(result, int) else 0


def _sentence(error: BaseException) -> tuple[str, int] | None:
    """Sentence and exit code of an error; None for a mistake in this program."""
    error = _interrupt_behind(error)
    match error:
        case TacclError():
            return str(error), error.exit_code
        case click.ClickException():
            return _in_one_sentence(error), InputError.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", Interrupted.exit_code
        case MemoryError():
            words = "the memory is too small for a problem of this size; use fewer ranks or chunks"
            return words, SynthesisError.exit_code
        case OSError(filename=str() | bytes() as name, strerror=str() as reason):
            where = os.fsdecode(name)
            return f"{where}: cannot be used: {reason}; name another file", InputError.exit_code
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EMFILE | errno.ENFILE, strerror=reason):
            return f"the machine cannot go on: {reason}; make room and start again", InputError.exit_code
        case RecursionError():
            return "the input is nested too deeply; write it with fewer levels", InputError.exit_code
    return None


def _interrupt_behind(error: BaseException) -> BaseException:
    """The interrupt that caused the error, else the error: Python 3.11 hides one that comes while a class is made in a RuntimeError."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, KeyboardInterrupt | Interrupted) else error


def _in_one_sentence(error: click.ClickException) -> str:
    """Message of a click error, without its usage lines."""
    what = " ".join(error.format_message().split())
    # Some versions of click suggest names, each in its own form, and only for options and commands of plain groups.
    what = _CLICKS_QUESTION.sub("", what).replace(". (", " (").rstrip(". ")
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "taccl"
    return f"command line: {what[:1].lower()}{what[1:]}; {_question(error)}see {command} --help"


def _question(error: click.ClickException) -> str:
    """Names near to the one that was refused: a command, an option, or a value of which there is a list."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    command, refused = error.ctx.command, _QUOTED.search(error.message)
    if isinstance(error, click.NoSuchOption):
        return did_you_mean(error.option_name, [name for one in command.params for name in one.opts])
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        return did_you_mean(refused.group(1), map(str, error.param.type.choices)) if refused else ""
    if isinstance(command, click.Group) and refused:
        return did_you_mean(refused.group(1), command.list_commands(error.ctx))
    return ""


def _complain(text: str) -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + text, err=True)
