"""The parts of each span, which sum to the span: compute, waiting, codec, latency, bandwidth."""

from collections.abc import Mapping

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.timeline import measure
from commsched.timeline.model import Timeline

CAUSES = ("compute drift", "latency", "bandwidth", "codec", "stragglers", "lost overlap")
COMPUTE, LATENCY, BANDWIDTH, CODEC, STRAGGLERS, OVERLAP = range(len(CAUSES))

RESOLUTION = 1e-9  # s, resolution of a timeline file

Exchanges = Mapping[str, tuple[float, float]]


def makeup(
    t: Timeline, exchanges: Exchanges, coded: bool, some: Ints | slice = slice(None)
) -> Floats:
    """Return (n, causes) s for all or some spans; a row sums to its span's duration.

    A span of the compute stream is all compute, a span of a coding stream all codec. An exchange is

        end - start = waited + coded + latency + bandwidth

    with `waited` and `coded` as recorded (or `coded` 0); `latency_share` divides the rest.
    """
    length = t.end - t.start
    moves, computes = measure.communicates(t), measure.computes(t)
    waited = np.minimum(t.waited, length)
    inside = np.minimum(t.coded, length - waited) if coded else np.zeros(len(t))
    rest = np.where(moves, length - waited - inside, 0.0)
    share = latency_share(t, rest, moves, exchanges)
    length, waited, inside, rest, share = (x[some] for x in (length, waited, inside, rest, share))
    moves, computes = moves[some], computes[some]
    parts = np.zeros((len(length), len(CAUSES)))
    parts[:, COMPUTE] = np.where(computes, length, 0.0)
    parts[:, CODEC] = np.where(computes, 0.0, np.where(moves, inside, length))
    parts[:, STRAGGLERS] = np.where(moves, waited, 0.0)
    parts[:, LATENCY] = rest * share
    parts[:, BANDWIDTH] = rest - parts[:, LATENCY]
    return parts


def latency_share(t: Timeline, rest: Floats, moves: Bools, exchanges: Exchanges) -> Floats:
    """Return the share of latency in `rest`, (n,) s: (n,), equal for spans of one name.

    For the exchanges of each stream, alpha and beta minimise the relative squares of

        rest = alpha l + beta b        alpha, beta >= 0

    over medians by name: l, b are the predicted seconds of latency and bandwidth for the name, or,
    without a prediction, 1 and the bytes. The share is alpha l / (alpha l + beta b).
    """
    share = np.zeros(len(t))
    stated = all(t.names[i] in exchanges for i in np.unique(t.name[moves]))
    for stream in np.unique(t.stream[moves]):
        here = np.flatnonzero(moves & (t.stream == stream))
        names, inverse = np.unique(t.name[here], return_inverse=True)
        y = np.array([np.median(rest[here[inverse == i]]) for i in range(len(names))])
        if stated:
            terms = np.array([exchanges[t.names[i]] for i in names], np.float64)
        else:
            nbytes = np.bincount(inverse, t.nbytes[here]) / np.bincount(inverse)
            terms = np.stack([np.ones(len(names)), nbytes], axis=1)
        terms = terms * _fit(terms, y, stated)
        whole = terms.sum(axis=1)
        known = np.where(whole > 0, terms[:, 0] / np.where(whole > 0, whole, 1.0), 1.0)
        share[here] = known[inverse]
    return share


def _fit(terms: Floats, y: Floats, stated: bool) -> tuple[float, float]:
    """Return alpha and beta, see `latency_share`.

    If sizes are too similar for a fit, use the predicted values, or count all as bandwidth.
    """
    alike = (1.0, 1.0) if stated else (0.0, 1.0)
    use = y >= RESOLUTION
    rows = terms[use] / y[use, None]
    square, target = rows.T @ rows, rows.sum(axis=0)
    product = square[0, 0] * square[1, 1]
    if product - square[0, 1] * square[1, 0] <= 1e-6 * product:
        return alike
    alpha, beta = np.linalg.solve(square, target).tolist()
    if alpha <= 0.0:
        return 0.0, 1.0
    return (1.0, 0.0) if beta <= 0.0 else (alpha, beta)
