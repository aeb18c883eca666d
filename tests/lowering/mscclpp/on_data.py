"""A plan of signals on real data: threadblocks take turns at random, puts happen when they are asked for. For tests of lowered demands only."""

import random

import numpy as np

from taccl_py.execute.arithmetic import combine, storage_type
from taccl_py.execute.plan import DataType, Operator


class PlanOnData:
    """Memories, signals and semaphores of all ranks; `unit` is how many elements a chunk has."""

    def __init__(self, plan, demand, inputs, seed=0):
        self.plan, self.order = plan, random.Random(seed)
        self.data_type = DataType(demand.dtype)
        longest = max(max(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"])
        self.unit = max(*demand.input_bytes, *demand.output_bytes) // longest // demand.element_bytes
        stored = storage_type(self.data_type)
        self.memory = []
        for rank, gpu in enumerate(plan["gpus"]):
            lengths = {"o": demand.output_bytes[rank] // demand.element_bytes, "s": gpu["scratch_chunks"] * self.unit}
            buffers = {name: np.zeros(length, dtype=stored) for name, length in lengths.items()}
            self.memory.append({"i": inputs[rank].copy(), **buffers})
        self.signals, self.semaphores = {}, {}

    def run(self):
        """Run to the end; the outputs of all ranks."""
        steps = {(g["id"], tb["id"]): 0 for g in self.plan["gpus"] for tb in g["threadblocks"]}
        active = [key for key in steps if self.block(key)["ops"]]
        while active:
            self.order.shuffle(active)
            moved = False
            for key in active:
                if self.do(key, self.block(key)["ops"][steps[key]]):
                    steps[key], moved = steps[key] + 1, True
            assert moved, "all threadblocks wait"
            active = [key for key in active if steps[key] < len(self.block(key)["ops"])]
        return tuple(memory["o"] for memory in self.memory)

    def block(self, key):
        return self.plan["gpus"][key[0]]["threadblocks"][key[1]]

    def do(self, key, op):
        name, rank = op["name"], key[0]
        ends = [self.end(key, op["channel_type"], number) for number in op.get("channel_ids", ())]
        if name in ("wait", "rlxwait"):
            return self.take(self.signals, ends)
        if name == "sem_acquire":
            return self.take(self.semaphores, [(rank, number) for number in op["semaphore_ids"]])
        if name == "sem_release":
            self.post(self.semaphores, [(rank, number) for number in op["semaphore_ids"]])
        elif name in ("put", "pws", "copy", "re"):
            parts = [self.cells(key, op, one) for one in op["src_buff"]]
            value = parts[0]
            for part in parts[1:]:
                value = combine(Operator.SUM, self.data_type, value, part)
            self.cells(key, op, op["dst_buff"][0])[...] = value
        if name in ("signal", "rlxsignal", "pws"):
            self.post(self.signals, [self.other(end) for end in ends])
        return True

    @staticmethod
    def take(counts, keys):
        if any(counts.get(key, 0) < 1 for key in keys):
            return False
        for key in keys:
            counts[key] -= 1
        return True

    @staticmethod
    def post(counts, keys):
        for key in keys:
            counts[key] = counts.get(key, 0) + 1

    def peers(self, rank, kind):
        return [
            peer
            for one in self.plan["gpus"][rank]["channels"]
            if one["channel_type"] == kind
            for peer in one["connected_to"]
        ]

    def end(self, key, kind, number):
        (ids,) = [one["channel_ids"] for one in self.block(key)["channels"] if one["channel_type"] == kind]
        return key[0], kind, ids[number]

    def other(self, end):
        rank, kind, number = end
        peers = self.peers(rank, kind)
        peer, turn = peers[number], peers[:number].count(peers[number])
        return peer, kind, [place for place, one in enumerate(self.peers(peer, kind)) if one == rank][turn]

    def cells(self, key, op, operand):
        rank, buffer = key[0], operand.get("type")
        if buffer is None:
            (ids,) = [
                one["remote_buffer_ids"]
                for one in self.block(key)["remote_buffer_refs"]
                if one["access_channel_type"] == op["channel_type"]
            ]
            remote = self.plan["gpus"][rank]["remote_buffers"][ids[operand["buffer_id"]]]
            rank, buffer = remote["rank"], remote["type"]
        first, end = operand["index"] * self.unit, (operand["index"] + operand["size"]) * self.unit
        assert end <= len(self.memory[rank][buffer])
        return self.memory[rank][buffer][first:end]
