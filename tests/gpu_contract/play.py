"""Entry point of the scenes: python play.py LIBRARY STORE OUTPUT SCENE..."""

import sys
from pathlib import Path

from fake_device import load

if __name__ == "__main__":
    library, store, output, *names = sys.argv[1:]
    load(Path(library))  # before torch is imported
    from scenes import main

    main(names, Path(store), Path(output))
