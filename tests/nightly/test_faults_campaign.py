"""Every fault of the campaign ends its job in time, and is said."""

import os

import pytest

from tests.nightly.faults_campaign import FAULTS, Fault, full_disk, inflict


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_ends_its_job_and_is_said(fault: Fault, tmp_path):
    if fault.start is full_disk and os.geteuid() != 0:
        pytest.skip("only root can make a small disk")
    outcome = inflict(fault, tmp_path)
    assert outcome.holds, outcome
