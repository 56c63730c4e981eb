"""CUDA kernels compute NumPy's bits on the GPU of this machine."""

from pathlib import Path

import pytest

from tests.cuda_exam import (
    test_a_pruned_step_is_the_same,
    test_a_scan_makes_starts_of_counts,
    test_bits_are_found_and_counted_wherever_a_bitmap_begins,
    test_codes_are_packed_to_the_same_bytes,
    test_every_code_is_widened_to_the_same_number,
    test_flags_places_and_ranks_are_the_same,
    test_groups_are_the_same,
    test_halves_are_the_same_words_however_they_lie,
    test_hierarchical_hashing_places_alike_in_any_order_of_threads,
    test_lists_are_summed_to_the_same_bits,
    test_of_equal_magnitudes_the_first_are_taken,
    test_quantisers_agree_on_odd_gradients,
    test_quantisers_write_the_same_packets,
    test_random_numbers_are_the_same,
    test_rounding_is_the_same_for_any_number,
    test_selections_write_the_same_packets,
)

__all__ = [
    "test_a_pruned_step_is_the_same",
    "test_a_scan_makes_starts_of_counts",
    "test_bits_are_found_and_counted_wherever_a_bitmap_begins",
    "test_codes_are_packed_to_the_same_bytes",
    "test_every_code_is_widened_to_the_same_number",
    "test_flags_places_and_ranks_are_the_same",
    "test_groups_are_the_same",
    "test_halves_are_the_same_words_however_they_lie",
    "test_hierarchical_hashing_places_alike_in_any_order_of_threads",
    "test_lists_are_summed_to_the_same_bits",
    "test_of_equal_magnitudes_the_first_are_taken",
    "test_quantisers_agree_on_odd_gradients",
    "test_quantisers_write_the_same_packets",
    "test_random_numbers_are_the_same",
    "test_rounding_is_the_same_for_any_number",
    "test_selections_write_the_same_packets",
]

if not Path("/dev/nvidiactl").exists():
    pytest.skip("this machine has no NVIDIA GPU", allow_module_level=True)
cupy = pytest.importorskip("cupy", reason="CuPy is not installed: commsched[cuda]")


@pytest.fixture(scope="module")
def both():
    """Run a function with NumPy, and with CuPy: both results in NumPy."""
    return lambda function: (function(lambda values: values.copy()), here(function(cupy.asarray)))


def here(found):
    """Results on the host."""
    if isinstance(found, (tuple, list)):
        return [here(each) for each in found]
    return found.get() if isinstance(found, cupy.ndarray) else found
