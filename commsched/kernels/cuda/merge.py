"""Sums of sparse lists on a GPU. Twin of `merge.merged`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda import select
from commsched.kernels.cuda.launch import THREADS, start, strides
from commsched.kernels.modules import module_of


def merged(lists: list[tuple[Array, Array]], numel: int) -> tuple[Array, Array]:
    """Add lists of indices, (m,) each, and values, in their order; zeros may remain.

    Passes over 1 bit per element instead of 32, and over the lists' entries.
    """
    lists = [(index.astype(np.int64, copy=False), values) for index, values in lists]
    module = module_of(lists[0][1])
    words = module.zeros(-(-numel // 32), np.uint32)
    for index, _ in lists:
        start("merge", "mark", strides(len(index)), index, np.int64(len(index)), words)
    starts = select.bit_counts(words.view(np.uint8), numel)
    select.scan(starts)
    ranks = module.empty(len(words), np.uint32)
    blocks = -(-len(words) // THREADS)
    start("merge", "rank_words", blocks, words, np.int64(len(words)), starts, ranks)
    found = select.places(words.view(np.uint8), numel, starts)
    sums = module.zeros(len(found), np.float32)
    for index, values in lists:
        given = index, values, np.int64(len(index)), words, ranks, sums
        start("merge", "add_list", strides(len(index)), *given)
    return found, sums
