"""The command `duramen`, and `python -m duramen`: Ctrl-C ends it without a word also while it loads."""

import sys

try:
    from duramen.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
