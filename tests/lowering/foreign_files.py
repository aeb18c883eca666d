"""Files as older tools write them: legacy attributes, copies that no runtime carries out."""

from tests.verify.msccl.files import add, make_file, nop, step

LATER = ("outofplace", "minBytes", "maxBytes")


def legacy(file, **changes):
    """The file without the attributes that only later runtimes need."""
    for name in LATER:
        del file.attributes[name]
    file.attributes.update(changes)
    return file


def with_copies(file, copies_of):
    """Text of a file with copy elements, given as (i_off, o_off) for each rank."""
    text = file.text()
    for rank in range(len(file.gpus)):
        start = text.index("\n", text.index(f'<gpu id="{rank}"')) + 1
        made = "".join(f'    <copy i_off="{i}" o_off="{o}"/>\n' for i, o in copies_of(rank))
        text = text[:start] + made + text[start:]
    return text


def copying_allgather(n=3):
    """A ring in which sending and receiving threadblocks are apart, and a rank's own chunk is copied to the output first."""
    file = make_file("allgather", n, n, (1, n, 0), proto="Simple")
    for rank in range(n):
        chunks = [(rank - k) % n for k in range(n)]
        sends = [step("s", f"o{chunks[k]}", f"o{chunks[k]}", after=(1, k - 1) if k else None) for k in range(n - 1)]
        receives = [step("r", f"o{chunks[k]}", f"o{chunks[k]}", flag=int(k < n - 1)) for k in range(1, n)]
        add(file, rank, (rank + 1) % n, -1, sends)
        add(file, rank, -1, (rank - 1) % n, receives)
    return with_copies(legacy(file), lambda rank: [(0, rank)])


def copying_reducescatter(n=3):
    """Everybody sends everybody its part; the source of rrc is where the sender has it, as TACCL writes it."""
    file = make_file("reduce_scatter", n, n, (n, 1, 0), proto="Simple")
    for rank in range(n):
        others = [peer for peer in range(n) if peer != rank]
        for number, peer in enumerate(others):
            add(file, rank, peer, -1, [step("s", f"i{peer}", "o0")])
            after = (2 * number - 1, 0) if number else None
            add(file, rank, -1, peer, [step("rrc", f"i{rank}", "o0", after=after, flag=int(number < n - 2))])
    return with_copies(legacy(file), lambda rank: [(rank, 0)])


def scratch_behind_the_output():
    """Rank 0's chunk goes by way of rank 1's scratch, which lies behind its output, to rank 2."""
    file = make_file("alltoall", 3, 3, (3, 3, 0), proto="Simple", inplace=0)
    for rank in range(3):
        for peer in range(3):
            if peer != rank and (rank, peer) != (0, 2):
                add(file, rank, peer, -1, [step("s", f"i{peer}", f"o{rank}")])
                add(file, peer, -1, rank, [step("r", f"i{peer}", f"o{rank}")])
    add(file, 0, 1, -1, [step("s", "i2", "o3")], chan=1)
    add(file, 1, -1, 0, [step("r", "i2", "o3", flag=1)], chan=1)
    done = (len(file.gpus[1].blocks) - 1, 0)
    add(file, 1, 2, -1, [step("s", "o3", "o0", after=done)], chan=1)
    add(file, 2, -1, 1, [step("r", "o3", "o0")], chan=1)
    file.gpus[1].attributes["s_chunks"] = 1
    return with_copies(legacy(file), lambda rank: [(rank, rank)])


def dangling_nop():
    """A nop before a step that waits for nothing itself, which runtimes refuse."""
    file = make_file("allreduce", 2, 1, (1, 1, 1), inplace=0)
    for rank in range(2):
        add(file, rank, 1 - rank, 1 - rank, [step("s", "i0"), step("r", dst="s0", flag=1)])
        add(file, rank, -1, -1, [step("cpy", "i0", "o0"), nop((0, 1)), step("re", "s0", "o0")])
    return file.text()
