// Sums of rows of a table. Twin of `rows.summed_rows`.

#include "common.cuh"

// Row ordered[k], ascending, is given as row order[k] of values (n, width). A thread adds up a column of
// all that go to one row, in their order; out (rows, width) is zero.
KERNEL add_rows(const i64 *ordered, const i64 *order, i64 n, const float *values, i64 width, float *out)
{
    for (i64 i = here(); i < n * width; i += stride()) {
        i64 at = i / width, column = i % width, row = ordered[at];
        if (at && ordered[at - 1] == row) // the row's first one adds it
            continue;
        float sum = 0.0f;
        for (; at < n && ordered[at] == row; at++)
            sum += values[order[at] * width + column];
        out[row * width + column] = sum;
    }
}
