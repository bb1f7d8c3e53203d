"""``python -m spindle`` says where the help is: the package is not a command line."""

import sys

from . import __version__

TEXT = f"""\
This is version {__version__} of the Python client of Spindle. It is imported, and has no commands:

    python -c 'import spindle; help(spindle)'           what there is; also help(spindle.Client), help(spindle.Table)
    python -m pydoc -b                                  the same in a browser

The command line is the program `spindle` itself: `spindle help`.
"""


if __name__ == "__main__":
    sys.exit(TEXT)
