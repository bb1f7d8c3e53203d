"""The commands of the tables as PROTOCOL.md lists them. A unit test compares the list of the server with the same page."""

import pathlib
import re
from typing import NamedTuple

PAGE = pathlib.Path(__file__).parents[2] / "src/services/tables/PROTOCOL.md"


class Command(NamedTuple):
    code: int
    name: str
    # The names of the fields that come once, of one that may follow, and of those that come 1 to 1,024 times at the end.
    once: list
    optional: list
    repeated: list
    # read, write or admin. Empty: any user may send it.
    access: str

    def arguments(self, of_field, optional=False):
        """A frame for each field, from a function of its name."""
        return [of_field(name) for name in self.once + (self.optional if optional else []) + self.repeated]


def read():
    _, table = PAGE.read_text().split("\n| code | command |", 1)
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        _, code, name, arguments, access, *_ = (cell.strip() for cell in line.split("|"))
        once, optional, repeated = re.fullmatch(r"([^\[(…]*?)(?:\[(.*)\])?(?:([^ ]+|\(.*\))…)?", arguments).groups()
        words = ((words or "").strip("()").split() for words in (once, optional, repeated))
        yield Command(int(code), name, *words, access)


COMMANDS = list(read())
