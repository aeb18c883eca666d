"""Lift: a plan of one orbit becomes the schedule of the whole machine."""

from __future__ import annotations

from itertools import accumulate

from taccl_py.collective import Collective
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import OrderChoice


def lifted(network: CapacityNetwork, choice: OrderChoice, collective: Collective, chunk_bytes: float) -> Schedule:
    """Every message with its images, in messages that steps can carry.

    Parameters
    ----------
    network, choice
        The machine, and the plan.
    collective
        With as many chunks of every rank as the plan.
    chunk_bytes
        Size of a chunk.
    """
    links = network.link_images().tolist()
    images = network.images.tolist()
    begins = [list(accumulate(sizes, initial=0)) for sizes in choice.costs.chunks]
    # One root may have all of the data.
    is_all = sum(choice.costs.chunks[0]) == collective.num_chunks
    untimed, most = [], choice.costs.message_chunks
    for message in choice.plan.messages:
        transfers = [choice.transfers[index] for index in message.transfers]
        first, begin = transfers[0], begins[transfers[0].root]
        own = [chunk for transfer in transfers for chunk in range(begin[transfer.piece], begin[transfer.end])]
        parts = [own[at : at + most] for at in range(0, len(own), most)]
        # Parts follow each other; between them, others may take a port that is faster than the link.
        part_us = (message.end_us - message.start_us) / max(1, len(parts))
        for image, link_image in zip(images, links, strict=True):
            offset = 0 if is_all else image[network.roots[first.root]] * choice.num_chunks
            for number, part in enumerate(parts):
                chunks = tuple(offset + chunk for chunk in part)
                begin_us = message.start_us + number * part_us
                end_us = message.end_us if number == len(parts) - 1 else begin_us + part_us
                untimed.append(UntimedMessage(link_image[first.link], chunks, begin_us, end_us, first.reduce))
    return build_schedule(network.problem.topology, collective, chunk_bytes, untimed)
