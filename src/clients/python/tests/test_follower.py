"""The algorithm of a mirror against a simulated server and network: each seed is another history of failures.

The network loses, doubles and delays messages of the feed, and cuts both connections. The server publishes changes
later than it makes them, starts again, drops and makes its table, forgets its history, and changes the table between
the rows of a page. Whenever the mirror says that it is exact, it has what was published before its sequence. When the
faults end, it becomes exact.
"""

import random

import pytest

from spindle import _feed
from spindle._feed import BOOKMARK_TYPE, CHANGES_TYPE, DROPPED_TYPE, Message, Position, State
from spindle._follower import ASK_CHANGES, ASK_PAGE, Follower
from spindle._xxh3 import xxh3_64

STEPS = 500
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]


class Simulated:
    """A server with one table."""

    def __init__(self, rng):
        self.rng = rng
        # What was published before each sequence of each life.
        self.truths = {}
        self.epoch = 0
        self.restart()

    def restart(self):
        self.epoch = self.epoch * 7 % 1009 + 5
        # A version says nothing beside one of another epoch.
        self.versions = self.rng.randrange(60)
        self.incarnations = self.incarnation = 0
        self.create()

    def create(self):
        if not self.incarnation:
            self.incarnations += 1
            self.incarnation = self.incarnations
            # Key → (version, value or None). Then what is not published yet, and what was published as live.
            self.made, self.waiting, self.published, self.log = {}, [], {}, []
            self.oldest = 1
            self.note()

    def position(self):
        return Position(self.epoch, self.incarnation, len(self.log) + 1 if self.incarnation else 1)

    def note(self):
        self.truths[self.position()] = dict(self.published)

    def write(self, key, value):
        if self.incarnation and (value is not None or self.made.get(key, (0, None))[1] is not None):
            self.versions += 1
            self.made[key] = (self.versions, value)
            self.waiting.append((key, self.versions, value))

    def publish(self):
        """Publishes the next change, and returns its message."""
        if not self.waiting:
            return None
        key, version, value = self.waiting.pop(0)
        message = Message(CHANGES_TYPE, self.position(), [self.change(key, version, value)], 0, 0)
        self.log.append(message)
        if value is None:
            self.published.pop(key, None)
        else:
            self.published[key] = (version, value)
        self.note()
        return message

    @staticmethod
    def change(key, version, value):
        return (_feed.DELETE, version, 0, key, b"") if value is None else (_feed.SET, version, 0, key, value)

    def drop(self):
        """The table ends, and all its changes are published."""
        messages = []
        if self.incarnation:
            for key in list(self.made):
                self.write(key, None)
            while self.waiting:
                messages.append(self.publish())
            messages.append(Message(DROPPED_TYPE, self.position(), [], 0, 0))
            self.incarnation = 0
            self.published = {}
            self.note()
        return messages

    def digest(self):
        return sum(xxh3_64(key, version) for key, (version, _) in self.published.items()) % (1 << 64)

    def bookmark(self):
        return Message(BOOKMARK_TYPE, self.position(), [], len(self.published), self.digest())

    def answer(self, follower, asked):
        """The reply: the method of the follower, and its arguments."""
        rng = self.rng
        if not self.incarnation:
            return follower.answer_no_table, ()
        if asked.kind == ASK_PAGE:
            life = f"{self.epoch}:{self.incarnation}:"
            cursor = asked.argument.decode()
            if cursor and not cursor.startswith(life):
                return follower.answer_bad_cursor, ()
            at = int(cursor.rpartition(":")[2] or 0)
            rows = []
            for key in KEYS[at : at + 2]:
                version, value = self.made.get(key, (0, None))
                is_published = version not in [other for _, other, _ in self.waiting]
                if value is not None or not is_published:
                    mark = _feed.PUBLISHED if is_published else _feed.AHEAD if value is not None else _feed.DELETED
                    rows.append((key, value or b"", version.to_bytes(8, "big"), bytes(8), mark))
                self.write(rng.choice(KEYS), b"within a page" if rng.random() < 0.3 else None)
            end = at + 2 >= len(KEYS)
            return follower.answer_page, (b"" if end else f"{life}{at + 2}".encode(), rows)
        if asked.kind == ASK_CHANGES:
            wanted = asked.argument
            if wanted[:2] != self.position()[:2] or not self.oldest <= wanted.sequence <= len(self.log):
                return follower.answer_compacted, ()
            return follower.answer_changes, (self.log[wanted.sequence - 1 :][: rng.randrange(1, 5)],)
        return follower.answer_state, (State(self.position(), self.oldest, len(self.published), self.digest()),)


class History:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.faults = {name: self.rng.choice((0, 0.02, 0.1)) for name in ("lose", "double", "delay", "cut")}
        self.faults.update({name: self.rng.choice((0, 0.005, 0.02)) for name in ("restart", "drop", "forget")})
        self.server = Simulated(self.rng)
        self.follower = Follower()
        self.way, self.late = [], []
        # The request on its way, then the reply on its way.
        self.asked = self.replied = None
        # How far the feed was received in each life.
        self.seen = {}
        self.is_up = False
        self.exact = 0

    def happens(self, fault):
        return self.rng.random() < self.faults[fault]

    def send(self, message):
        if message is None or not self.is_up or self.happens("lose"):
            return
        if self.happens("delay"):
            self.late.append(message)
            return
        self.way += [message] * (2 if self.happens("double") else 1)

    def cut(self):
        self.is_up, self.way = False, []
        self.follower.feed_lost()

    def lose_request(self):
        self.asked = self.replied = None
        self.follower.requests_lost()

    def step(self):
        rng, server = self.rng, self.server
        value = rng.choice((None, b"%d" % rng.randrange(99), b"x"))
        server.write(rng.choice(KEYS), value)
        if rng.random() < 0.7:
            self.send(server.publish())
        if rng.random() < 0.1:
            self.send(server.bookmark())
        if self.happens("drop"):
            for message in server.drop():
                self.send(message)
        elif rng.random() < 0.1:
            server.create()
        if self.happens("forget"):
            server.oldest = len(server.log) + 1
        if self.happens("restart"):
            server.restart()
            self.cut()
            self.lose_request()
        if self.happens("cut"):
            self.cut()
        if self.happens("cut"):
            self.lose_request()
        if self.late and rng.random() < 0.1:
            message = self.late.pop(rng.randrange(len(self.late)))
            if self.is_up:
                self.receive(message)
        self.move()

    def move(self):
        """The network and the mirror continue."""
        if not self.is_up and self.rng.random() < 0.3:
            self.is_up = True
            self.send(self.server.bookmark())
        if self.way and self.rng.random() < 0.8:
            self.receive(self.way.pop(0))
        self.check()
        if self.replied is not None:
            if self.rng.random() < 0.5:
                (answer, arguments), self.replied = self.replied, None
                answer(*arguments)
        elif self.asked is not None:
            if self.rng.random() < 0.5:
                self.replied, self.asked = self.server.answer(self.follower, self.asked), None
        elif self.rng.random() < 0.8:
            self.asked = self.follower.ask()
        self.check()

    def receive(self, message):
        life, end = message.position[:2], message.position.sequence + len(message.changes)
        if life == self.follower.life and message.kind != DROPPED_TYPE:
            self.seen[life] = max(end, self.seen.get(life, 0))
        self.follower.receive(message)

    def copy(self):
        known = self.follower.copy.known.items()
        return {key: (entry.version, entry.value) for key, entry in known if entry.value is not None}

    def check(self):
        copy = self.follower.copy
        live = self.copy()
        assert copy.elements == len(live)
        assert copy.digest() == sum(xxh3_64(key, version) for key, (version, _) in live.items()) % (1 << 64)
        if self.follower.is_exact:
            self.exact += 1
            at = self.follower.at()
            assert not at.incarnation or at.sequence >= self.seen.get(at[:2], 0), "a gap is known"
            # "No table" has no epoch.
            assert live == (self.server.truths[at] if at.incarnation else {}), at

    def run(self):
        for _ in range(STEPS):
            self.step()
        self.faults = dict.fromkeys(self.faults, 0)
        for turn in range(3000):
            self.send(self.server.publish())
            if turn % 20 == 0:
                self.send(self.server.bookmark())
            self.move()
            if turn % 10 == 0 and not self.server.waiting and self.follower.is_exact and not self.way:
                at, there = self.follower.at(), self.server.position()
                if at == there or not at.incarnation and not there.incarnation:
                    return
        raise AssertionError("the mirror does not become exact")


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_an_exact_mirror_has_the_truth_and_it_becomes_exact(first):
    met = {"gaps": 0, "scans": 0, "verified": 0, "exact": 0}
    for seed in range(first, first + 40):
        history = History(seed)
        try:
            history.run()
        except AssertionError as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault
        assert history.follower.differences == 0, seed
        for name in ("gaps", "scans", "verified"):
            met[name] += getattr(history.follower, name)
        met["exact"] += history.exact
    assert all(count > 40 for count in met.values()), met


def test_a_digest_that_differs_is_found():
    history = History(7)
    history.faults = dict.fromkeys(history.faults, 0)
    history.run()
    entry = next(iter(history.follower.copy.known.items()), None)
    while entry is None:
        history.step()
        entry = next(iter(history.follower.copy.known.items()), None)
    history.follower.copy._touch(*entry)
    entry[1].version += 1_000_000
    history.follower.copy.known[entry[0]].value = b"wrong"
    history.exact = 0
    history.check = lambda: None
    history.run()
    assert history.follower.differences == 1
    assert history.copy() == history.server.published
