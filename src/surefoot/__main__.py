"""`python -m surefoot`: the command line."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.path[:1] == [str(Path.cwd())]:  # -m puts it first; the installed command searches it last
        del sys.path[0]
    from surefoot.cli import main

    main()
