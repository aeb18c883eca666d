"""Knowledge of ranks of a cluster: what they can get to know, at most, and how soon it is handed out inside a node.

A port serves one message after the other, each lasts for its alpha and beta, and none carries more than its sender knows when it
starts. So what comes over one port by some time is at most a longest path over starts and arrivals. Over links inside a node comes
what others of the node know. What came into the node after some moment nobody there knew at that moment, so that it has to multiply
from what single messages bring: three messages of ranks one after the other for eight, with a third alpha in the end.

Time goes in cells, and everything is rounded in favour of the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.synthesis.bounds.crossing import Gate

# Cells between moments after which what comes into a node is followed.
_STRIDE = 3


@dataclass(frozen=True)
class Hub:
    """The best that ranks of any node can do to get to know something.

    Attributes
    ----------
    gate
        A way into a node: least alpha and beta of any.
    gates, own
        Ways into a node, and into a rank from outside its node, at most.
    ranks
        Ranks of a node, at most.
    rate_mb_per_us
        What comes to a rank over links inside its node.
    entry, entries
        What limits it, a port or link of which every such message takes one: least alpha and beta, and how many at most; none if
        nothing does.
    hears_us
        Times by which a rank can have heard from one, two, ... ranks of its node.
    """

    gate: Gate
    gates: int
    own: int
    ranks: int
    rate_mb_per_us: float
    entry: Gate
    entries: int
    hears_us: tuple[float, ...]

    def learned(
        self,
        cells: int,
        cell_us: float,
        share_mb: float,
        given: FloatArray | None = None,
        summed: FloatArray | None = None,
    ) -> KnowledgeLimit:
        """Shares of ranks that a rank knows at most by the end of every cell, and gets at most from others of its node.

        By t it knows at most what was in its node by some earlier time, and of what came in later, only what entered at as many ranks
        as it can have heard from since, and no more than comes over its links, where it multiplies.

        Parameters
        ----------
        cells, cell_us
            Number of cells, and their length.
        share_mb
            Megabytes of a share.
        given
            Shares that a rank can send by the end of every cell, if that is not to be found.
        summed
            If shares are added up: how many a byte can be the sum of, by the cell that its message starts in.
        """
        learning = _Learning(self, cells, cell_us, share_mb, given, summed)
        learning.run()
        return KnowledgeLimit(learning.known, _STRIDE * cell_us, learning.inside)


@dataclass(frozen=True)
class KnowledgeLimit:
    """Amounts that a rank knows and gets at most by the end of every cell.

    Attributes
    ----------
    known
        Shares, [cell].
    stride_us
        Time between the moments that are looked at, the first of which is 0.
    handed
        Shares that it gets over links inside its node of what came there after a moment, [moment, cell].
    """

    known: FloatArray
    stride_us: float
    handed: FloatArray


class _Learning:
    """Longest paths, cell after cell."""

    def __init__(
        self,
        hub: Hub,
        cells: int,
        cell_us: float,
        share_mb: float,
        given: FloatArray | None,
        summed: FloatArray | None,
    ) -> None:
        self._hub, self._cells, self._given = hub, cells, given
        # Megabytes of a share, by the cell that a message starts in.
        self._share_mb: FloatArray = share_mb / (np.ones(cells) if summed is None else summed)
        self._moments = np.arange(0, cells, _STRIDE)
        self._lasting: FloatArray = np.arange(1.0, cells + 1.0) * cell_us
        self._lead, self._inner_lead = int(hub.gate.alpha_us / cell_us), int(hub.entry.alpha_us / cell_us)
        heard = np.searchsorted(np.array(hub.hears_us), self._lasting * (1 + 1e-9), side="right")
        self._heard: FloatArray = heard.astype(np.float64)
        in_time = np.maximum(0.0, self._lasting - hub.entry.alpha_us) * hub.rate_mb_per_us
        self._in_time: FloatArray = in_time
        # By the end of every cell: what a rank knows, what one of its gates has brought; of what came after a moment what one gate has
        # brought, and all entries together, [moment, cell].
        self.known = np.zeros(cells) if given is None else given
        self._brought = np.zeros(cells)
        self._late = np.zeros((len(self._moments), cells))
        self.inside = np.zeros((len(self._moments), cells))

    def run(self) -> None:
        for cell in range(self._cells):
            rows = cell // _STRIDE + 1  # moments that are not after the cell
            if cell:
                for found in (self._late, self.inside):
                    found[:rows, cell] = found[:rows, cell - 1]
                self._brought[cell] = self._brought[cell - 1]
            self._bring(cell, rows)
            self._tell(cell, rows)
            if self._given is None:
                self.known[cell] = self._learned(cell, rows)

    def _bring(self, cell: int, rows: int) -> None:
        """Messages over a gate that arrive in a cell."""
        number = cell - self._lead + 1
        if number <= 0:
            return
        gate, lasting = self._hub.gate, self._lasting[cell + 1 - number : cell + 1][::-1]
        size = size_within(self.known[:number], lasting, gate.alpha_us, gate.beta_us_per_mb * self._share_mb[:number])
        self._brought[cell] = max(self._brought[cell], float((size + self._brought[:number]).max()))
        late = (self._late[:rows, :number] + size).max(axis=1)
        self._late[:rows, cell] = np.maximum(self._late[:rows, cell], late)

    def _tell(self, cell: int, rows: int) -> None:
        """Messages over an entry that arrive in a cell."""
        hub, number = self._hub, cell - self._inner_lead + 1
        if not hub.entries or not self._inner_lead:
            self.inside[:rows, cell] = np.inf
        elif number > 0:
            entry, lasting = hub.entry, self._lasting[cell + 1 - number : cell + 1][::-1]
            before = self.inside[:rows, :number]
            has = hub.own * self._late[:rows, :number]
            has += before
            size = size_within(has, lasting, entry.alpha_us, entry.beta_us_per_mb * self._share_mb[:number], out=has)
            size *= hub.entries
            size += before
            found = np.minimum(size.max(axis=1), hub.gates * self._late[:rows, cell])
            self.inside[:rows, cell] = np.maximum(self.inside[:rows, cell], found)

    def _learned(self, cell: int, rows: int) -> float:
        """Amount that a rank knows by the end of a cell."""
        hub, best = self._hub, self._brought[cell]
        found = float(self._heard[cell] * (1 + hub.own * best))
        if hub.entries == 1 and self._lasting[cell] <= hub.gate.least_us:
            found = min(found, self._gathered(cell))
        if not cell:
            return found
        # In the node by the end of an earlier cell: what its ranks have, and what came over all gates.
        before = hub.ranks + hub.gates * self._brought[:cell]
        in_time = self._in_time[:cell] / self._share_mb[cell] if self._share_mb[cell] > 0 else np.inf
        since = np.minimum(self._heard[:cell] * hub.own * best, hub.own * best + in_time)[::-1]
        split = float(hub.ranks + self._split(cell, rows).min())
        return min(found, float((before + since).min()), split)

    def _gathered(self, cell: int) -> float:
        """Amount that a rank knows of its own node by some time if all of it comes over one port (`taccl_py.synthesis.bounds.ends`)."""
        entry, found, alphas = self._hub.entry, 1.0, 0
        time_us, per_share_us = float(self._lasting[cell]), entry.beta_us_per_mb * float(self._share_mb[cell])
        while found == 2.0**alphas and found < self._hub.ranks:
            alphas += 1
            left_us = time_us * (1 + 1e-9) - alphas * entry.alpha_us
            if left_us >= 0:
                come = left_us / per_share_us if per_share_us > 0 else math.inf
                found = max(found, min(2.0**alphas, 1 + come))
        return found

    def _split(self, cell: int, rows: int) -> FloatArray:
        """Amounts that came over the gates, split at every moment.

        Of gates from which a rank knows nothing that came later it knows what they can have brought before; of the others, no more than
        those that it can have heard from since, what they can have brought before their last message.
        """
        hub, moments, late = self._hub, self._moments[:rows], self._late[:rows, cell]
        before = np.append(0.0, self._brought[:cell])[moments]
        early = np.minimum(before, self._brought[cell - self._lead] if cell >= self._lead else 0.0)
        told = hub.own * late + self.inside[:rows, cell]
        most = np.minimum(float(hub.gates), hub.own * self._heard[cell - moments])
        gates = np.minimum(most, np.divide(told, late, out=np.zeros(rows), where=late > 0))
        found = (hub.gates - gates) * before + gates * early + np.minimum(told, gates * late)
        return np.asarray(np.maximum(found, hub.gates * before), dtype=np.float64)


def size_within(
    known: FloatArray,
    lasting_us: FloatArray,
    alpha_us: float,
    per_share_us: float | FloatArray,
    out: FloatArray | None = None,
) -> FloatArray:
    """Shares in a message that lasts at most so long, of as many as its sender knows; `out` is for the result, as in numpy."""
    if np.all(np.asarray(per_share_us) <= 0):
        return known
    found: FloatArray = np.minimum(known, np.maximum(0.0, lasting_us - alpha_us) / per_share_us, out=out)
    return found
