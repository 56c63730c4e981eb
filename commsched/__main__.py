"""`python -m commsched` is the same as `commsched`."""

import sys

try:
    from commsched.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
