"""Numerical tolerances: what may differ because of floating point, of a solver or of rounded files, and still be the same.

What is chosen to save work, or because it leads to better schedules, is no tolerance but in the `Params` of an engine.
"""

from __future__ import annotations

# Times and loads that are reached by different sums are equal up to this part: a double has 16 digits, and sums have many terms.
RELATIVE = 1e-9
# Times, in microseconds, that are compared near 0, where there is nothing to be relative to.
ABSOLUTE_US = 1e-9
# Results of a few operations on the same numbers are equal up to this part.
LAST_DIGITS = 1e-12
# Loads and prices that linear programs lead to, and ratios of rates that files give in a few digits, are equal up to this part.
ROUNDED = 1e-6
# A linear program is solved where its bound is this close, relatively: as exactly as HiGHS keeps constraints.
LP_GAP = 1e-7
# Amounts in the solution of a linear program that are not larger are 0.
LEAST_AMOUNT = 1e-9
# Decimal places to which sizes and times are rounded before they are compared, so that equal ones are equal.
DIGITS = 6
# The same for times, in microseconds, that are sums of few terms.
FINE_DIGITS = 9
# Of two messages that follow each other, the second may start before the first ends by this part of the first one's time, and by so
# many units in the last place: schedules are written with finitely many digits. The verifier, the simulator and the lowering agree.
SAME_MOMENT, ULPS = 1e-6, 16
# A schedule whose time is above a bound by at most this part reaches it, which proves that it is optimal.
BOUND_REACHED = 1e-6
# Answers above the bound by at most this part are not searched further: less than predictions are off by.
CLOSE_TO_BOUND = 0.01
