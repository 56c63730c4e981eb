"""`python -m commsched` is the same as `commsched`."""

import sys

from commsched.cli.main import main

sys.exit(main())
