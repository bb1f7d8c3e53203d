"""`spindle top` in a terminal: it draws, sorts and helps, and leaves the terminal as it was, by a key and by a signal.

Arguments: the program, and the address of the server's --admin.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PROGRAM, ADDRESS = sys.argv[1:]
# Seconds until something that is to come has failed to.
PATIENCE = 60
LEAVES = b"\x1b[?1049l"
LINES, COLUMNS = 40, 120
# A sequence for the terminal, whole or begun at the end of what has come, or a character.
PIECE = re.compile("\x1b(?:\\[([0-9;?]*)([@-~])|\\[[0-9;?]*$|[^\\[]|$)|([^\x1b])")


class Terminal:
    def __init__(self):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.execv(PROGRAM, [PROGRAM, "top", "--admin", ADDRESS])
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.seen = b""

    def text(self):
        """What stands on the screen. A program sends only the cells that change, and moves over the others."""
        cells = [[" "] * COLUMNS for _ in range(LINES)]
        line = column = 0
        for arguments, command, character in PIECE.findall(self.seen.decode(errors="ignore")):
            if command == "H":
                line, column = (int(number or 1) - 1 for number in (arguments or "1;1").split(";"))
            elif command == "J":
                cells = [[" "] * COLUMNS for _ in range(LINES)]
            elif character and character.isprintable() and line < LINES and column < COLUMNS:
                cells[line][column] = character
                column += 1
        return "\n".join("".join(line) for line in cells)

    def read(self):
        ready, _, _ = select.select([self.end], [], [], 1)
        try:
            self.seen += os.read(self.end, 65536) if ready else b""
            return True
        except OSError:  # The program has closed its side.
            return False

    def wait_for(self, text):
        end = time.monotonic() + PATIENCE
        while text not in self.text():
            assert time.monotonic() < end and self.read(), (text, self.text())

    def status(self):
        while self.read():
            pass
        return os.waitpid(self.pid, 0)[1]


for leave in (b"q", b"\x03", None):
    terminal = Terminal()
    terminal.wait_for("Spindle")
    terminal.wait_for("users")
    os.write(terminal.end, b"?")
    terminal.wait_for("show or hide the keys")
    os.write(terminal.end, b"?s")
    terminal.wait_for("s: sorted by count")
    if leave == b"q":
        # The queue of jobs, where one is dead.
        for keys, said in [(b"k", "choose a queue first"), (b"\x1b[B", "> jobs/mail"), (b"k", "1 kicked"), (b"p", "paused until"),
                           (b"x", "x again purges"), (b"x", "0 removed"), (b"r", "resumed")]:
            os.write(terminal.end, keys)
            terminal.wait_for(said)
    if leave is None:
        os.kill(terminal.pid, signal.SIGTERM)
    else:
        os.write(terminal.end, leave)
    status = terminal.status()
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert LEAVES in terminal.seen, terminal.seen[-2000:]
print("ok")
