"""`python -m duramen`: the same as the command `duramen`."""

import sys

from duramen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
