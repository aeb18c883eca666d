"""Installation of plans: what is written, and the names that MSCCL++ looks for by itself."""

import json

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.execute import taccl_plans
from taccl_py.portfolio.plans import MODULE, PlanOffer, install_plans
from taccl_py.releases import cautions_about
from tests.execute.test_taccl_plans import plan_of

KIB = 1 << 10


def offer(low=1 * KIB, high=64 * KIB, *, collective="allreduce", num_ranks=16, on_node=8, root=None):
    """A plan to install, which nobody has verified."""
    value, _ = plan_of(collective, low, high, num_ranks=num_ranks, on_node=on_node)
    return PlanOffer(value, Kind(collective), num_ranks, True, root, low, high, 16 * num_ranks, f"{low}.json")


def test_what_is_written_is_a_table_the_module_and_plans_of_their_own_names():
    found = install_plans([offer(), offer(65 * KIB, 128 * KIB)], trim=False)
    names = [f"allreduce-0016-in-{low:020d}-{high:020d}" for low, high in ((KIB, 64 * KIB), (65 * KIB, 128 * KIB))]
    assert sorted(found.texts) == [*(f"plans/{name}.json" for name in names), taccl_plans.TABLE, MODULE]
    table = [taccl_plans.RegisteredPlan(**one) for one in json.loads(found.texts[taccl_plans.TABLE])["plans"]]
    assert [(one.name, one.file) for one in table] == [(name, f"plans/{name}.json") for name in names]
    for one in table:
        value = json.loads(found.texts[one.file])
        assert (value["name"], value["min_message_size"]) == (one.name, one.min_bytes)
        assert taccl_plans.describe(value, one.file) == one


def test_plans_with_other_roots_do_not_compete():
    with pytest.raises(InputError, match="also done by"):
        install_plans(
            [offer(collective="broadcast", root=1), offer(high=2 * KIB, collective="broadcast", root=1)], trim=False
        )
    found = install_plans([offer(collective="broadcast", root=root) for root in (3, 1)], trim=False)
    assert [one.root for one in found.offers] == [1, 3]


def by_itself(version, *offers):
    texts = install_plans(offers, trim=False, default_names=version).texts
    found = {
        name.removeprefix("default/"): json.loads(text) for name, text in texts.items() if name.startswith("default/")
    }
    return {name: (len(value["gpus"]), value["min_message_size"]) for name, value in found.items()}


def test_the_names_that_mscclpp_looks_for_by_itself_go_by_size():
    larger, smaller = offer(2048 * KIB, 4096 * KIB), offer()
    assert by_itself("0.9", larger, smaller) == {
        "allreduce_2nodes_1K_64K.json": (16, KIB), "allreduce_2nodes_64K_2M.json": (16, 2048 * KIB),
    }  # fmt: skip
    others = (offer(num_ranks=32), offer(num_ranks=64, on_node=4), offer(collective="allgather"))
    assert by_itself("0.10", larger, smaller, *others) == {
        "allreduce_2nodes_1K_64K.json": (16, KIB), "allreduce_2nodes_128K_2M.json": (16, 2048 * KIB),
        "allreduce_4nodes_1K_64K.json": (32, KIB), "allreduce_4nodes_128K_2M.json": (64, KIB),
    }  # fmt: skip
    assert by_itself("0.10", offer(num_ranks=64, on_node=2)) == {"allreduce_4nodes_128K_2M.json": (64, KIB)}


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ([offer(num_ranks=32)], "looks by itself only for an AllReduce of 16 ranks on nodes of 8, and none"),
        ([offer(on_node=16)], "none of the plans is"),
        ([offer(), offer(65 * KIB, 66 * KIB), offer(67 * KIB, 68 * KIB)], "3 plans are for an AllReduce of 16 ranks, and MSCCL"),
    ],
)  # fmt: skip
def test_what_it_does_not_look_for_is_an_error(offers, says):
    with pytest.raises(InputError, match=says):
        install_plans(offers, trim=False, default_names="0.9")


def test_operations_are_those_of_loops_too():
    one = offer()
    one.value["gpus"][3]["threadblocks"] = [
        {"ops": [{"name": "nop"}, {"name": "pipeline", "ops": [{"name": "gstore"}]}]}
    ]
    assert one.operations == {"nop", "pipeline", "gstore"}
    sums, newer = (
        cautions_about(frozenset({"allreduce"}), frozenset()),
        cautions_about(frozenset({"alltoall"}), one.operations),
    )
    assert len(sums) == 1
    assert "plans only sum" in sums[0]
    assert newer[0] == "gstore is in these plans, which MSCCL++ has since 0.10"
    assert "asks for no plan at alltoall: call execute" in newer[1]


@pytest.mark.parametrize(("collectives", "operations", "warned"), [
    ({"broadcast", "allreduce"}, {"ppkt"}, True), ({"broadcast"}, {"put"}, False), ({"allgather"}, {"rppkt"}, False),
])  # fmt: skip
def test_roots_and_packets_are_not_mixed(collectives, operations, warned):
    found = cautions_about(frozenset(collectives), frozenset(operations))
    assert any("can let a fast rank overwrite packets" in one for one in found) == warned
