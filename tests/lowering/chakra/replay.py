"""A clock of its own for execution traces on a network file: what ASTRA-sim's congestion-aware analytical back end does, in a page.

A node is issued when all that it depends on is done. A send hands its message to its link, which serves messages in the order in which
they come, each for its bytes over the bandwidth; it arrives a latency later. Send and receive are done then. Nanoseconds are cut.
"""

import heapq
import re
from collections import defaultdict

SEND, RECEIVE = 5, 6


def network(text):
    """Shape, number of NPUs, bytes a nanosecond, and latency in nanoseconds."""
    found = dict(re.findall(r"^(\w+): \[ (\S+) \]", text, re.MULTILINE))
    return found["topology"], int(found["npus_count"]), float(found["bandwidth"]) * 2**30 / 1e9, float(found["latency"])


def joined(shape, size, src, dst):
    return src != dst and (shape == "FullyConnected" or (dst - src) % size in (1, size - 1))


class Clock:
    """Runs the ranks' nodes."""

    def __init__(self, ranks, text):
        self.shape, self.size, self.bytes_per_ns, self.latency_ns = network(text)
        assert len(ranks) == self.size
        self.nodes = {(rank, node.id): node for rank, nodes in enumerate(ranks) for node in nodes}
        assert len(self.nodes) == sum(map(len, ranks)), "an id is there twice"
        self.waits, self.users = {}, defaultdict(list)
        for (rank, key), node in self.nodes.items():
            before = {(rank, other) for other in [*node.data_deps, *node.ctrl_deps]}
            self.waits[rank, key] = before
            for other in before:
                self.users[other].append((rank, key))
        self.events, self.count, self.now = [], 0, 0
        self.queues, self.busy = defaultdict(list), set()
        self.posted, self.arrived, self.done = {}, set(), set()

    def run(self):
        """When the last node was done, in nanoseconds."""
        for place in [place for place, before in self.waits.items() if not before]:
            self.issue(place)
        while self.events:
            self.now, _, act, what = heapq.heappop(self.events)
            act(what)
        assert self.done == set(self.nodes), "nodes wait for ever"
        return self.now

    def at(self, delay_ns, act, what):
        self.count += 1
        heapq.heappush(self.events, (self.now + int(delay_ns), self.count, act, what))

    def issue(self, place):
        node = self.nodes[place]
        message = (node.comm_src, node.comm_dst, node.comm_tag, node.comm_size)
        if node.type == SEND:
            assert place[0] == node.comm_src
            assert joined(self.shape, self.size, *message[:2]), (
                "a message that the network would route over other ranks"
            )
            self.queues[message[:2]].append((message, place))
            self.serve(message[:2])
        else:
            assert node.type == RECEIVE
            assert place[0] == node.comm_dst
            assert message not in self.posted, "two messages are alike"
            self.posted[message] = place
            if message in self.arrived:
                self.finish(place)

    def serve(self, link):
        if link in self.busy or not self.queues[link]:
            return
        message, place = self.queues[link].pop(0)
        self.busy.add(link)
        taken = message[3] / self.bytes_per_ns
        self.at(self.latency_ns + taken, self.arrive, (message, place))
        self.at(taken, self.free, link)

    def free(self, link):
        self.busy.discard(link)
        self.serve(link)

    def arrive(self, what):
        message, place = what
        self.arrived.add(message)
        self.finish(place)
        if message in self.posted:
            self.finish(self.posted[message])

    def finish(self, place):
        self.done.add(place)
        for user in self.users[place]:
            self.waits[user].discard(place)
            if not self.waits[user]:
                self.issue(user)


def replay_ns(ranks, text):
    """Time of decoded traces on a network file."""
    return Clock(ranks, text).run()
