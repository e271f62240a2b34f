"""`python -m pagedlab` is the `pagedlab` command."""

import sys

from pagedlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
