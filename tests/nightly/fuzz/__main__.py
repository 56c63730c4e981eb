"""`python -m tests.nightly.fuzz`; see campaign.py."""

import sys

from tests.nightly.fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main())
