"""The module that registers plans with MSCCL++, on a stand-in of that: it registers, selects, and refuses."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

from taccl_py.execute import taccl_plans
from taccl_py.execute.taccl_plans import PlanError, PlanRegistry, RegisteredPlan, describe
from tests.execute import mscclpp_standin
from tests.execute.mscclpp_standin import DataType, Library, Request

KIB = 1 << 10


def plan_of(
    collective="allreduce", low=1 * KIB, high=64 * KIB, *, in_place=True, num_ranks=4, root=-1, name="", on_node=4
):
    """JSON of a plan whose ranks of a node know each other, without what it does."""
    shards = {"allgather": (1, num_ranks), "reducescatter": (num_ranks, 1)}.get(collective, (num_ranks, num_ranks))
    gpus = []
    for rank in range(num_ranks):
        node = range(rank // on_node * on_node, rank // on_node * on_node + on_node)
        near = [peer for peer in node if peer != rank]
        far = [peer for peer in range(num_ranks) if peer not in node]
        channels = [{"channel_type": "memory", "connected_to": near}, {"channel_type": "port", "connected_to": far}]
        gpus.append({"id": rank, "input_chunks": shards[0], "output_chunks": shards[1], "channels": channels})
    where = "in" if in_place else "out"
    value = {
        "name": name or f"{collective}-{where}-{low}", "collective": collective, "inplace": in_place, "protocol": "Simple",
        "min_message_size": low, "max_message_size": high, "gpus": gpus,
    }  # fmt: skip
    return value, root


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write plans and their table."""
    mscclpp_standin.put_in_place(monkeypatch)

    def write(*plans):
        rows = []
        for value, root in plans:
            (tmp_path / f"{value['name']}.json").write_text(json.dumps(value), encoding="utf-8")
            rows.append(describe(value, f"{value['name']}.json", root)._asdict())
        table = {"format": taccl_plans.FORMAT, "version": taccl_plans.VERSION, "plans": rows}
        (tmp_path / taccl_plans.TABLE).write_text(json.dumps(table), encoding="utf-8")
        return tmp_path

    return write


def test_a_call_runs_the_plan_for_its_size_and_placement(folder):
    at = folder(
        plan_of(),
        plan_of(low=64 * KIB + 1, high=KIB * KIB),
        plan_of(in_place=False),
        plan_of("allgather", in_place=True),
    )
    taccl_plans.register(0, 4, folder=at)
    library = Library()
    here = {"input_buffer": 1 << 20, "output_buffer": 1 << 20}
    assert library.run(Request("allreduce", 4 * KIB, **here)) == "allreduce-in-1024"
    assert library.run(Request("allreduce", 128 * KIB, **here)) == "allreduce-in-65537"
    assert library.run(Request("allreduce", 4 * KIB)) == "allreduce-out-1024"
    assert library.run(Request("allreduce", 128 * KIB)) is None
    assert library.run(Request("allreduce", 2 * KIB * KIB, **here)) is None
    assert library.run(Request("broadcast", 4 * KIB, **here, hints={"root": [0]})) is None
    # The size of an AllGather is told for each rank, and counted of the output.
    assert library.run(Request("allgather", 16 * KIB, **here)) == "allgather-in-1024"
    assert library.run(Request("allgather", 32 * KIB, **here)) is None


def test_a_size_that_ends_the_program_is_left_to_others(folder):
    """16 bytes for each of four chunks: MSCCL++ throws at 4097 bytes, and its own selector would take the plan."""
    taccl_plans.register(0, 4, folder=folder(plan_of()))
    library = Library()
    assert library.run(Request("allreduce", 4 * KIB + 16, output_buffer=1 << 20)) is None
    assert library.run(Request("allreduce", 4 * KIB + 64, output_buffer=1 << 20)) == "allreduce-in-1024"
    (algorithm,) = library.algorithms["allreduce"].values()
    algorithm.constraint.n_ranks_per_node = 4  # as MSCCL++'s own compiler sets it
    with pytest.raises(RuntimeError, match="not aligned"):
        library.run(Request("allreduce", 4 * KIB + 16, output_buffer=1 << 20))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_all_ranks_of_a_reduce_scatter_take_the_same_plan(folder, rank):
    """MSCCL++'s answer is that rank 0 alone is in place."""
    shards = {"reducescatter": 1 * KIB}
    at = folder(plan_of("reducescatter"), plan_of("reducescatter", in_place=False))
    taccl_plans.register(rank, 4, folder=at)
    library, given = Library(), 1 << 20
    wanted = given + rank * shards["reducescatter"]
    request = Request("reducescatter", 4 * KIB, rank=rank, input_buffer=given, output_buffer=wanted)
    assert request.buffer_mode() == (rank == 0)
    assert library.run(request) == "reducescatter-in-1024"
    request.output_buffer = 1 << 30
    assert library.run(request) == "reducescatter-out-1024"


def test_types_and_roots_count(folder):
    here = {"input_buffer": 1 << 20, "output_buffer": 1 << 20}
    at = folder(plan_of("broadcast", root=0, name="from-0"), plan_of("broadcast", root=2, name="from-2"), plan_of())
    taccl_plans.register(1, 4, folder=at)
    library = Library()
    for root, name in ((0, "from-0"), (1, None), (2, "from-2")):
        assert library.run(Request("broadcast", 4 * KIB, rank=1, hints={"root": [root]}, **here)) == name
    assert library.run(Request("allreduce", 4 * KIB, rank=1, dtype=DataType.uint8, **here)) is None


def test_other_worlds_are_refused(folder):
    at = folder(plan_of(), plan_of(num_ranks=8, on_node=8, name="of-8"))
    with pytest.raises(PlanError, match="there is no plan for 6 ranks, only for 4, 8; start as many, or install"):
        taccl_plans.register(0, 6, folder=at)
    with pytest.raises(PlanError, match="rank 4 is not among 4"):
        taccl_plans.load(4, 4, folder=at)
    taccl_plans.register(0, 4, folder=at)
    library = Library()
    assert list(library.algorithms["allreduce"]) == ["allreduce-in-1024"]
    part = Request("allreduce", 4 * KIB, world_size=2, n_ranks_per_node=2, output_buffer=1 << 20)
    assert library.run(part) is None


def test_ranks_that_use_each_others_memory_must_be_on_one_node(folder):
    value, _ = plan_of(num_ranks=8, on_node=4)
    assert describe(value, "one.json").ranks_per_node == 4
    for on_node, domain, name in (
        (4, None, "allreduce-in-1024"),
        (8, None, "allreduce-in-1024"),
        (2, None, None),
        (2, 4, "allreduce-in-1024"),
    ):
        at = folder((value, -1))
        mscclpp_standin.AlgorithmCollectionBuilder.instance = None
        taccl_plans.register(0, 8, folder=at, ranks_per_domain=domain)
        request = Request("allreduce", 4 * KIB, world_size=8, n_ranks_per_node=on_node, output_buffer=1 << 20)
        assert Library().run(request) == name
    lone, _ = plan_of(num_ranks=4, on_node=1)
    assert describe(lone, "one.json").ranks_per_node == 1
    lone["gpus"][1]["channels"].append(
        {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 4, "ranks": [0, 1, 2]}]}
    )
    assert describe(lone, "one.json").ranks_per_node == 4


def test_a_communicator_that_counts_its_ranks_otherwise_runs_its_own_part(folder):
    plans = taccl_plans.register(1, 4, folder=folder(plan_of()))
    library = Library()
    assert library.run(Request("allreduce", 4 * KIB, rank=3, output_buffer=1 << 20)) == "allreduce-in-1024"
    assert {rank for _, rank in plans._algorithms} == {1, 3}


def test_execute_takes_the_plan_for_the_addresses(folder):
    """Sizes of both buffers follow from the one that counts."""
    at, seen = folder(plan_of("allgather"), plan_of(in_place=False), plan_of("reducescatter")), []

    class Executor:
        def execute(self, rank, given, wanted, given_bytes, wanted_bytes, data_type, plan, stream):
            seen.append((rank, wanted - given, given_bytes, wanted_bytes, data_type.name, plan.name, stream))

    class Communicator:
        rank = 1

    plans = taccl_plans.load(1, 4, folder=at)
    call = (Communicator(), Executor())
    assert plans.execute(*call, "allgather", 5000, 5000 - 1024, 4 * KIB, DataType.float16, 9) == 0
    assert plans.execute(*call, "allreduce", 0, 1 << 20, 4 * KIB, DataType.float32) == 0
    assert plans.execute(*call, "reducescatter", 0, 1 * KIB, 4 * KIB, DataType.float32) == 0
    assert seen == [
        (1, -1024, 1 * KIB, 4 * KIB, "float16", "allgather-in-1024", 9),
        (1, 1 << 20, 4 * KIB, 4 * KIB, "float32", "allreduce-out-1024", 0),
        (1, 1 * KIB, 4 * KIB, 1 * KIB, "float32", "reducescatter-in-1024", 0),
    ]
    with pytest.raises(PlanError, match="no plan is for allreduce of 4096 bytes there"):
        plans.execute(*call, "allreduce", 0, 0, 4 * KIB, DataType.float32)


@pytest.mark.parametrize(
    ("names", "rank"), [(("RANK", "WORLD_SIZE"), 2), (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), 1)]
)
def test_the_launcher_tells_the_rank(folder, monkeypatch, names, rank):
    at = folder(plan_of())
    for pair in taccl_plans._LAUNCHERS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    with pytest.raises(PlanError, match="no launcher tells"):
        taccl_plans.load(folder=at)
    for name, value in zip(names, (rank, 4), strict=True):
        monkeypatch.setenv(name, str(value))
    assert taccl_plans.load(folder=at).rank == rank
    assert taccl_plans.load(3, folder=at).rank == 3
    monkeypatch.setenv(names[1], "")
    with pytest.raises(PlanError, match="are no whole numbers"):
        taccl_plans.load(folder=at)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("{", "is no table of plans"),
        ('{"format": "taccl-plans", "version": 9, "plans": []}', "is of another version"),
        ('{"format": "taccl-plans", "version": 1, "plans": [{"file": "x"}]}', "is no table of plans"),
    ],
)
def test_a_table_that_is_none_is_told(folder, text, says):
    at = folder(plan_of())
    if text is None:
        (at / taccl_plans.TABLE).unlink()
    else:
        (at / taccl_plans.TABLE).write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=says):
        taccl_plans.load(0, 4, folder=at)


def test_a_plan_that_is_gone_or_none_is_told(folder):
    at = folder(plan_of())
    (at / "allreduce-in-1024.json").unlink()
    with pytest.raises(PlanError, match=r"allreduce-in-1024\.json is not there; run taccl install again"):
        taccl_plans.load(0, 4, folder=at)
    with pytest.raises(PlanError, match="is no execution plan"):
        describe({"name": "x", "gpus": []}, "x.json")


def test_an_old_mscclpp_and_none_are_told(folder, monkeypatch):
    at = folder(plan_of())
    mscclpp_standin.put_in_place(monkeypatch, old=True)
    with pytest.raises(
        PlanError, match=r"mscclpp is 0\.8\.0, which has no algorithms to register; build MSCCL\+\+ 0\.9"
    ):
        taccl_plans.load(0, 4, folder=at)
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    with pytest.raises(PlanError, match="mscclpp cannot be imported"):
        taccl_plans.load(0, 4, folder=at)


def test_it_runs_beside_its_table_before_a_script(folder, monkeypatch, capsys):
    """As python -m taccl_plans SCRIPT ARGUMENTS does, of a copy that knows nothing of taccl."""
    at = folder(plan_of())
    module = at / "taccl_plans.py"
    module.write_text(Path(taccl_plans.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (at / "train.py").write_text("import sys, beside\nprint(__name__, sys.argv, beside.here)", encoding="utf-8")
    (at / "beside.py").write_text("here = True", encoding="utf-8")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(sys, "argv", [str(module), str(at / "train.py"), "--fast"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(module), run_name="__main__")
    assert capsys.readouterr().out == f"__main__ {[str(at / 'train.py'), '--fast']} True\n"
    assert Library().run(Request("allreduce", 4 * KIB, output_buffer=1 << 20)) == "allreduce-in-1024"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", [str(module), str(at / "train.py")])
    with pytest.raises(SystemExit, match="taccl_plans: there is no plan for 2 ranks, only for 4"):
        runpy.run_path(str(module), run_name="__main__")
    with pytest.raises(SystemExit, match=r"nowhere.py: no such file"):
        taccl_plans.main(["nowhere.py"])
    with pytest.raises(SystemExit, match="usage: "):
        taccl_plans.main([])


def test_it_imports_nothing_of_taccl():
    text = Path(taccl_plans.__file__).read_text(encoding="utf-8")
    assert "taccl_py" not in text
    spec = importlib.util.spec_from_file_location("alone", taccl_plans.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.RegisteredPlan._fields == RegisteredPlan._fields
    assert module.PlanRegistry.__doc__ == PlanRegistry.__doc__
