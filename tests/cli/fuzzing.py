"""Bad inputs by the thousand, drawn with a fixed seed: files of every class, damaged; options; special files.

``python -m tests.cli.fuzzing FOLDER FIRST LAST`` runs those with these numbers in one process and prints what is wrong as JSON.
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import re
import resource
import socket
import sys
from collections import Counter
from pathlib import Path

SEED = 32
HANGS_SECONDS = 60
GOOD_CODES = {0, 2, 3, 4, 5, 6}
CODES = Counter()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# In the place of a number, and of any value.
NUMBERS = [
    "-1",
    "0",
    "1e308",
    "1e999",
    "9" * 30,
    "9" * 5000,
    "0.5",
    "NaN",
    "-Infinity",
    "",
    "null",
    '"x"',
    "0x10",
    "007",
]
VALUES = [None, True, -1, 0, 10**9, 10**30, 1e300, 0.5, "", "x", "\u00e9" * 50, [], [[]], [1, "a"], {}, {"a": {}}]
WORDS = [
    "", "-1", "0", "1.5", "nan", "inf", "1e999", "9" * 400, "\u00e9", "a" * 300, "/dev/null", ".", "x,y", "1-", "0-99999999", "0->0",
    "1KiB:", "4G:1K", "ring:", "ring:999999999", "mesh:0x4", "torus:4x4x4x4x4x4x4", "0-3:2", "*:0", "-", "--", "\x01", "%s", "{}", "~", "1 2",
]  # fmt: skip


def inputs():
    """Correct files by name, of every class that commands read, with the commands (FILE stands for the file)."""
    synth = ("--engine", "templates", "--time-limit", "0.2", "--only-schedule")
    machine = [
        ("topo", "show", "FILE"), ("synth", "FILE", "allgather", *synth), ("bound", "FILE", "allreduce", "--size", "1KiB"),
        ("topo", "diff", "FILE", "ring:4"), ("topo", "align", "FILE", "-o", "aligned.json"), ("profile", "--emulate", "FILE", "--repeats", "1"),
    ]  # fmt: skip
    program = [
        ("check", "FILE"), ("show", "FILE"), ("convert", "FILE", "-o", "o.xml"), ("run", "FILE"), ("install", "FILE", "-o", "algos"),
        ("simulate", "FILE", "--topology", "ring:4"), ("check", "FILE", "--runtime", "legacy"), ("convert", "FILE", "--runtime", "rccl", "-o", "-"),
    ]  # fmt: skip
    schedule = [
        ("check", "FILE"), ("show", "FILE"), ("lower", "FILE", "-o", "o.xml"), ("run", "FILE"), ("simulate", "FILE"),
        ("lower", "FILE", "--to", "chakra", "-o", "traces"), ("lower", "FILE", "--to", "nccl-graph", "-o", "-"),
        ("lower", "FILE", "--to", "rccl-channels", "-o", "-"),
        ("report", "FILE", "-o", "r.md", "--sizes", "1KiB:4KiB"), ("trace", "FILE", "-o", "t.json"),
    ]  # fmt: skip
    plan = [
        ("check", "FILE"), ("show", "FILE"), ("run", "FILE"), ("install", "FILE", "-o", "plans", "--runtime", "mscclpp"),
        ("simulate", "FILE", "--topology", "ring:4"),
    ]  # fmt: skip
    imported = [("topo", "import", "FILE", "-o", "o.json")]
    logs = [("topo", "fit", "FILE", "-o", "o.json"), ("topo", "fit", "FILE", "--by", "class", "-o", "o.json")]
    suite = [
        ("sweep", "FILE", "-o", "cat", "--workers", "1", "--only", "nothing"),
        ("regress", "check", "FILE", "--only", "nothing"),
    ]
    return {
        "node.json": machine, "expanded.json": machine, "profile.json": machine[:3], "matrices.json": machine[:3],
        "sketch.json": [("sketch", "validate", "FILE", "--topology", "ndv2", "--nodes", "2"),
                        ("synth", "ndv2", "allgather", "--nodes", "2", "--sketch", "FILE", "--time-limit", "0.1", "--only-schedule")],
        "schedule.json": schedule, "algorithm.xml": program, "foreign.xml": program, "plan.json": plan,
        "nccl.xml": imported, "graph.xml": [*imported, ("compare", "ring:4", "allgather", "--sizes", "1KiB:1KiB", "--time-limit", "0.1", "--nccl-graph", "FILE")],
        "smi.txt": imported, "samples.csv": logs, "log.txt": logs, "osu.txt": logs, "record.jsonl": logs,
        "suite.toml": suite,
    }  # fmt: skip


def write_inputs(folder):
    """Write the correct files."""
    from tests.cli import inputs as good
    from tests.discover import dumps
    from tests.lowering.foreign_files import copying_allgather
    from tests.verify.mscclpp.plans import two_allgather

    values = {
        "node.json": good.NODE_FORM, "expanded.json": good.EXPANDED, "profile.json": good.PROFILE, "matrices.json": good.MATRICES,
        "sketch.json": good.SKETCH, "plan.json": two_allgather(),
    }  # fmt: skip
    for name, value in values.items():
        good.write_json(folder / name, value)
    log = "\n".join(
        f"{size} {size // 4} float sum -1 {5 + size / 1e5:.2f} 1.0 1.0 0 {5 + size / 1e5:.2f} 1.0 1.0 0"
        for size in (1024, 1 << 20)
    )
    texts = {
        "foreign.xml": copying_allgather(), "nccl.xml": dumps.pcie_only(), "graph.xml": dumps.graph_dump(),
        "smi.txt": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7\n",
        "samples.csv": "src,dst,size_bytes,time_us\n0,1,1024,5\n0,1,1048576,95\n1,0,1024,5\n1,0,1048576,96\n",
        "log.txt": f"# nThread 1 nGpus 1\n#  Rank  0 Group  0 Pid 1 on a device  0 [0x00] X\n# sendrecv_perf\n{log}\n",
        "osu.txt": "# OSU MPI Latency Test v7\n# Size Latency (us)\n1 1.5\n1024 2.5\n1048576 90.1\n",
        "record.jsonl": '{"format": "taccl-profile-record", "version": 1, "machine": "m", "num_ranks": 2}\n'
        '{"size_bytes": 1024, "messages": 1, "ranks": [0, 1], "times_us": [5.0]}\n',
        "suite.toml": 'format = "taccl-suite"\nversion = 1\n[[instances]]\ntopology = "ring:4"\ncollectives = "allgather"\nsizes = "1MB"\nengines = "templates"\n',
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    ended = call(["synth", "ring:4", "allgather", "--engine", "templates", "-o", "made"])
    assert ended[0] == 0, ended
    for name in ("schedule.json", "algorithm.xml"):
        (folder / name).write_bytes((folder / "made" / name).read_bytes())


def call(arguments):
    """Exit code and both texts of a command in this process; any error but that of an exit passes."""
    from taccl_py.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def damaged(draw, data, others):
    """A file with something wrong, as bytes."""
    way = draw.randrange(14)
    text = data.decode()
    if way < 4:
        return with_value(draw, text).encode("utf-8", "surrogatepass")
    if way < 7:
        places = list(NUMBER.finditer(text))
        if places:
            place = draw.choice(places)
            return (text[: place.start()] + draw.choice(NUMBERS) + text[place.end() :]).encode()
    begin = draw.randrange(len(data) + 1)
    end = min(len(data), begin + draw.choice([1, 2, 10, 200]))
    match way:
        case 7:
            return data[:begin]
        case 8:
            return data[:begin] + data[end:]
        case 9:
            return data[:end] + data[begin:end] * draw.choice([1, 100]) + data[end:]
        case 10:
            return data[:begin] + bytes(draw.randrange(256) for _ in range(3)) + data[begin:]
        case 11:
            return draw.choice([b"", b"\0", b"\xef\xbb\xbf" + data, data.decode().encode("utf-16"), b"[" * 100_000, b"a = " + b"[" * 100_000,
                                b"<a>" * 50_000, b'{"a":' * 50_000, data.replace(b",", b"," + b"x" * 140_000, 1), b"\n" * 1000, b'"', b"{}", b"[]"])  # fmt: skip
        case 12:
            return draw.choice(others)
    return (
        data[:begin]
        + draw.choice([b"<", b">", b'"', b"{", b"}", b",", b"\n", b"&amp;", b"\\u", b"-", b"."])
        + data[end:]
    )


def with_value(draw, text):
    """A JSON text with a value replaced or taken away, or any other with a word changed."""
    try:
        value = json.loads(text)
    except ValueError:
        words = re.split(r"(\W+)", text)
        words[draw.randrange(len(words))] = draw.choice(["", "x", "-1", "9" * 30, "nan", "\u00e9"])
        return "".join(words)
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return json.dumps([])
        key = draw.choice(keys)
        if isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.8:
            holder = holder[key]
            continue
        if draw.random() < 0.25:
            del holder[key]
        else:
            holder[key] = draw.choice(VALUES)
        return json.dumps(value)


def with_options(draw):
    """A command with a word that it may not like."""
    base = [
        ["synth", "ring:4", "allgather", "--engine", "templates", "--only-schedule", "--time-limit", "0.2"],
        ["bound", "ring:4", "allgather"], ["topo", "show", "ring:4"], ["check", "algorithm.xml"], ["simulate", "schedule.json"],
        ["lower", "schedule.json", "-o", "o.xml"], ["show", "algorithm.xml"], ["convert", "foreign.xml", "-o", "o.xml"],
        ["install", "algorithm.xml", "-o", "algos"], ["topo", "fit", "samples.csv", "-o", "o.json"], ["run", "algorithm.xml"],
        ["topo", "import", "nccl.xml", "-o", "o.json"], ["profile", "--emulate", "ring:4"], ["report", "schedule.json", "-o", "r.md"],
        ["topo", "diff", "ring:4", "ring:4"], ["pareto", "ring:4", "allgather", "--time-limit", "0.1"],
    ]  # fmt: skip
    names = [
        "--size", "--sizes", "--chunks", "--ranks", "--root", "--engine", "--solver", "--trees", "--seed", "--nodes", "--sketch", "--runtime",
        "--placement", "--protocol", "--instances", "--min-bytes", "--max-bytes", "--without-link", "--slow-link", "--without-port",
        "--slow-port", "--topology", "--collective", "-o", "--json", "--at", "--title", "--by", "--nonsense", "--rank", "--time-limit", "--gpu",
    ]  # fmt: skip
    words = draw.choice(base)
    match draw.randrange(3):
        case 0:
            words[draw.randrange(1, len(words))] = draw.choice(WORDS)
        case 1:
            words += [draw.choice(names), draw.choice(WORDS)]
        case 2:
            words += [draw.choice(names), draw.choice(WORDS), draw.choice(names), draw.choice(WORDS)]
    return [word.replace("\0", "") for word in words]


def special(draw, commands):
    """A command with a file that is none, or has a name that none can have."""
    names = [
        "/dev/zero", "/dev/urandom", "/dev/null", "/dev/full", "pipe", "socket", ".", "/", "loop", "nothing/at/all", "x" * 256, "x" * 5000,
        "schedule.json/x", "dangling", "/proc/self/mem", "\udcff.json", "a\nb", "/dev/fd/99", "big",
    ]  # fmt: skip
    words = list(draw.choice(commands))
    place = draw.choice([i for i, word in enumerate(words) if word == "FILE" or (words[i - 1] == "-o" and word != "-")])
    names = names if words[place] == "FILE" else [name for name in names if name not in ("pipe", "/", "/dev/urandom")]
    words[place] = draw.choice(names)
    return [draw.choice(["schedule.json", "algorithm.xml"]) if word == "FILE" else word for word in words]


def make_special(folder):
    """Files that are none."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("socket")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    with (folder / "big").open("wb") as file:
        file.truncate(1 << 40)


def drawn(number, files, commands):
    """Arguments of one input; writes the file that they name."""
    draw = random.Random(f"{SEED} {number}")
    kind = draw.random()
    if kind < 0.2:
        return with_options(draw)
    if kind < 0.3:
        return special(draw, [words for each in commands.values() for words in each])
    name = draw.choice(sorted(commands))
    bad = Path(f"bad{Path(name).suffix}")
    bad.write_bytes(damaged(draw, files[name], [files[one] for one in sorted(files)]))
    return [str(bad) if word == "FILE" else word for word in draw.choice(commands[name])]


def what_is_wrong(arguments):
    """What is wrong with how a command ends; empty if nothing is."""
    try:
        code, out, err = call(arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    CODES[code] += 1
    if code not in GOOD_CODES:
        return f"exit code {code}: {err[-200:]}"
    if "Traceback" in err or (code and not out + err):
        return f"exit code {code} says {err[-300:]!r}"
    return ""


def main(folder, first, last):
    import taccl_py.jsonio as jsonio

    jsonio._PIPE_SECONDS = 0.1
    os.chdir(folder)
    here = Path(folder)
    if not (here / "schedule.json").exists():
        write_inputs(here)
        make_special(here)
    commands = inputs()
    files = {name: (here / name).read_bytes() for name in commands}
    wrong = []
    for number in range(first, last):
        arguments = drawn(number, files, commands)
        # A hang ends the process, and says where it was.
        sys.stderr.write(f"{number}: {arguments}"[:300] + "\n")
        faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
        found = what_is_wrong(arguments)
        faulthandler.cancel_dump_traceback_later()
        if found:
            wrong.append([number, [word[:60] for word in arguments], found])
    found = {"wrong": wrong, "most_mb": most_mb(), "codes": dict(CODES)}
    sys.stdout.write(json.dumps(found))


def most_mb():
    """Most memory of this process so far, in MB; `getrusage` would also count that of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*([0-9]+) kB", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
