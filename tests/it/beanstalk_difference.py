"""Random commands of beanstalkd's protocol, to beanstalkd and to Spindle: every reply is the same.

Three connections to each server send the same bytes: commands about jobs that are there, gone or held by another
connection, lines that are none, bodies of wrong lengths, in any pieces, one by one or many at once. Ids are compared
by the order in which the jobs came, lists of tubes without their order, and times in whole classes.

Usage: beanstalk_difference.py SPINDLE_ADDRESS ORACLE_ADDRESS SEED COMMANDS
"""

import random
import re
import socket
import sys

# A wait that no test reaches.
TIMEOUT = 20
# What differs between two servers, whatever they are asked.
OWN = re.compile(
    rb"^(pid|file|version|rusage-.time|uptime|binlog-.*|id|hostname|os|platform|current-connections|total-connections|"
    rb"current-producers|current-workers|cmd-pause-tube): .*$",
    re.M,
)


class Client:
    """A connection that reads whole replies."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)
        self.unread = b""

    def take(self, length):
        while len(self.unread) < length:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self.unread += more
        taken, self.unread = self.unread[:length], self.unread[length:]
        return taken

    def reply(self):
        try:
            while b"\r\n" not in self.unread:
                more = self.socket.recv(1 << 16)
                if not more:
                    return b"closed" + self.unread
                self.unread += more
            line, self.unread = self.unread.split(b"\r\n", 1)
            words = line.split(b" ")
            if words[0] in (b"OK", b"RESERVED", b"FOUND"):
                return line + b"\n" + self.take(int(words[-1]) + 2)
            return line
        except socket.timeout:
            return b"silent" + self.unread


class Ids:
    """The ids of a server by the order in which its jobs came."""

    def __init__(self):
        self.of_server = []
        self.places = {}

    def add(self, number):
        self.places[number] = len(self.of_server)
        self.of_server.append(number)

    def place(self, number):
        return b"#%d" % self.places[number] if number in self.places else number


def plain(reply, ids):
    """A reply in which nothing is left that may differ."""
    line, newline, data = reply.partition(b"\n")
    words = line.split(b" ")
    if words[0] == b"INSERTED":
        ids.add(words[1])
        return b"INSERTED"
    if words[0] in (b"RESERVED", b"FOUND"):
        words[1] = ids.place(words[1])
        return b" ".join(words) + newline + data
    if words[0] != b"OK":
        return reply
    data = re.sub(rb"^id: (\d+)$", lambda match: b"job: " + ids.place(match[1]), data, flags=re.M)
    data = OWN.sub(b"", data)
    data = re.sub(rb"^(age|time-left|pause-time-left|uptime): (\d+)$", lambda m: m[1] + b": %d" % (int(m[2]) > 500), data, flags=re.M)
    if b"\n- " in data:
        data = b"\n".join(sorted(data.split(b"\n")))
    return b"OK\n" + data


TUBES = [b"default", b"a", b"b", b"long" * 50, b"A+/;.$_()-9"]
WRONG_TUBES = [b"", b"-a", b"a b", b"a,b", b"x" * 201, b"a\xff", b"a "]
WORDS = [
    b"put", b"peek", b"peek-ready", b"peek-delayed", b"peek-buried", b"reserve-with-timeout", b"reserve-job", b"delete",
    b"release", b"use", b"watch", b"ignore", b"bury", b"kick", b"kick-job", b"touch", b"stats", b"stats-job", b"stats-tube",
    b"list-tubes", b"list-tube-used", b"list-tubes-watched", b"pause-tube", b"reserve-jo", b"stat", b"statsx", b"PUT", b"",
]
NUMBERS = [
    b"0", b"1", b"7", b"007", b"1000", b"1024", b"4294967295", b"4294967296", b"18446744073709551615", b"18446744073709551616",
    b"99999999999999999999999", b"-1", b"+1", b"1x", b"x", b"", b" 1", b"1 ", b"0x10", b"1.5",
]


class Fuzz:
    def __init__(self, addresses, seed):
        self.random = random.Random(seed)
        self.addresses = addresses
        self.clients = [[Client(address) for address in addresses] for _ in range(3)]
        self.ids = [Ids(), Ids()]
        self.known = 0
        self.steps = 0
        self.used = [b"default"] * 3

    def job(self):
        """A job that may be there, by its place among all."""
        if not self.known or self.random.random() < 0.03:
            return None
        recent = min(self.known, 12)
        return self.known - 1 - self.random.randrange(recent)

    def tube(self):
        return self.random.choice(TUBES) if self.random.random() < 0.95 else self.random.choice(WRONG_TUBES)

    def number(self):
        return self.random.choice(NUMBERS)

    def put(self):
        pick = self.random
        size = pick.choice([0, 1, 3, 10, 200, 3000, 65535])
        body = bytes(pick.choice(b"ab\r\n \x00") for _ in range(size)) if size < 300 else b"z" * size
        pri = pick.choice([0, 1, 5, 1023, 1024, 65536, 4294967295])
        delay = pick.choice([0, 0, 0, 0, 1000 + self.known % 1000])
        return [b"put %d %d %d %d\r\n" % (pri, delay, 1000, size), body, b"\r\n"]

    def wrong_put(self):
        pick = self.random
        kind = pick.randrange(5)
        if kind == 0:
            size = pick.randrange(1, 9)
            return [b"put 1 0 1000 %d\r\n" % size, b"y" * (size + pick.randrange(1, 3)), b"\r\n\r\n"]
        if kind == 1:
            size = pick.choice([65536, 70000, 100000])
            return [b"put 1 0 1000 %d\r\n" % size, b"w" * size, b"\r\n"]
        if kind == 2:
            return [b"put %s %s %s %s\r\n" % (self.number(), self.number(), self.number(), pick.choice([b"x", b"", b"-3", b"1x"]))]
        if kind == 3:
            return [b"put 1 0 1000 4 \r\n"]
        return [b"put 1 0 1000\r\n"]

    def line(self):
        """A line about which both servers have to agree: words and numbers in any order.

        The end of a long one is missed if it stands on both sides of a portion, so another one follows.
        """
        pick = self.random
        kind = pick.randrange(4)
        if kind == 0:
            # Those with a time would wait.
            word = pick.choice(WORDS)
            if word == b"reserve-with-timeout":
                return word + b" " + pick.choice([b"", b"x", b"+0", b"-0", b"0x", b"4294967296", b"-", b" \t0", b"18446744073709551615"]) + b"\r\n"
            numbers = [self.number() for _ in range(pick.randrange(4))]
            # A job of this very id is another one on the other server.
            numbers = [b"0" if number.strip().isdigit() and 0 < int(number) < 1 << 31 else number for number in numbers]
            return b" ".join([word] + numbers) + b"\r\n"
        if kind == 1:
            return bytes(pick.choice(b"abcdefgh -\x00\xff\t0123") for _ in range(pick.randrange(1, 400))) + b"\r\n\r\n"
        if kind == 2:
            return b"z" * pick.choice([221, 222, 223, 224, 225, 300, 447, 448, 449, 1000]) + b"\r\n\r\n"
        return b"stats-tube " + pick.choice(WRONG_TUBES) + b"\r\n"

    def command(self):
        """The pieces of a command. A job is a number, for its id."""
        pick = self.random
        job = self.job()
        chance = pick.random()
        if chance < 0.25:
            return self.put()
        if chance < 0.29:
            return self.wrong_put()
        if chance < 0.35:
            return [self.line()]
        if chance < 0.50:
            return [b"reserve-with-timeout 0\r\n"]
        if chance < 0.75:
            about = pick.choice([b"delete", b"delete", b"peek", b"touch", b"reserve-job", b"kick-job", b"stats-job", b"release", b"bury"])
            rest = {b"release": b" %d %d" % (pick.choice([0, 5, 2000]), pick.choice([0, 0, 1000 + self.known % 777])), b"bury": b" %d" % pick.choice([0, 7])}
            return [about + b" ", job, rest.get(about, b"") + b"\r\n"]
        if chance < 0.90:
            return [pick.choice([b"use ", b"watch ", b"ignore ", b"stats-tube "]) + self.tube() + b"\r\n"]
        alone = [b"peek-ready", b"peek-delayed", b"peek-buried", b"list-tubes", b"list-tube-used", b"list-tubes-watched", b"stats", b"kick 1", b"kick 100", b"pause-tube default 0", b"pause-tube default 1000", b"pause-tube default 0"]
        return [pick.choice(alone) + b"\r\n"]

    def bytes_for(self, pieces, server):
        ids = self.ids[server].of_server
        unknown = b"9999999999"
        return b"".join(piece if isinstance(piece, bytes) else (unknown if piece is None else ids[piece]) for piece in pieces)

    def send(self, client, data):
        """In one piece, or in many."""
        if len(data) < 2000 and self.random.random() < 0.15:
            for byte in range(len(data)):
                client.socket.sendall(data[byte : byte + 1])
        else:
            client.socket.sendall(data)

    def step(self):
        """Some commands at once, and their replies."""
        number = self.random.randrange(3)
        commands = [self.command() for _ in range(self.random.choice([1, 1, 1, 2, 5]))]
        # Both in the same pieces.
        state = self.random.getstate()
        for server, client in enumerate(self.clients[number]):
            self.random.setstate(state)
            self.send(client, b"".join(self.bytes_for(pieces, server) for pieces in commands))
        # The only answer with this name is that to the last line.
        self.steps += 1
        end = b"zz%d" % self.steps
        for client in self.clients[number]:
            client.socket.sendall(b"use %s\r\n" % end)
        while True:
            replies = [plain(client.reply(), ids) for client, ids in zip(self.clients[number], self.ids)]
            if replies[0] != replies[1] or replies[0].startswith(b"silent"):
                return number, commands, replies
            if replies[0].startswith(b"closed"):
                return self.anew(number)
            if replies[0] == b"USING " + end:
                return self.back(number, commands)
            if replies[0].startswith(b"USING "):
                self.used[number] = replies[0].removeprefix(b"USING ")

    def back(self, number, commands):
        """The connection uses again what it has used before the end of the step."""
        self.known = len(self.ids[0].of_server)
        for client in self.clients[number]:
            client.socket.sendall(b"use %s\r\n" % self.used[number])
        replies = [client.reply() for client in self.clients[number]]
        if replies != [b"USING " + self.used[number]] * 2 or any(client.unread for client in self.clients[number]):
            return number, commands, replies
        return None

    def anew(self, number):
        self.used[number] = b"default"
        self.clients[number] = [Client(address) for address in self.addresses]
        return None


def main():
    addresses, seed, commands = sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    fuzz = Fuzz(addresses, seed)
    for step in range(commands):
        different = fuzz.step()
        if different:
            number, commands, replies = different
            brief = [[piece if isinstance(piece, int) or len(piece or b"") < 300 else len(piece) for piece in pieces] for pieces in commands]
            print(f"seed {seed}, step {step}, connection {number}: {brief}")
            lines = [reply.split(b"\n") for reply in replies]
            first = next((pair for pair in zip(*lines) if pair[0] != pair[1]), [lines[0][-1], lines[1][-1]])
            print(f"Spindle {first[0][:300]}, beanstalkd {first[1][:300]}, in {replies[0][:100]} and {replies[1][:100]}")
            sys.exit(1)
    print(f"{commands} steps, {len(fuzz.ids[0].of_server)} jobs: every reply is the same")


main()
