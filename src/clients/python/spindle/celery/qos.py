"""What a channel holds: messages that are delivered and not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .channel import Channel


class QoS:
    """The messages of a channel, by delivery tag. Unlike that of kombu it restores nothing: its restore publishes copies.
    A message that is not settled is still in its queue, under a lease, and goes back with it.
    """

    restore_at_shutdown = False

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        self.channel = channel
        self._prefetch_count = prefetch_count or 0
        self._delivered: Dict[str, Any] = {}

    @property
    def prefetch_count(self) -> int:
        """The most messages that the channel holds. 0: any number."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self._prefetch_count = count or 0
        self.channel.on_consumers_changed()

    def can_consume(self) -> bool:
        """Whether the channel may get another message."""
        return not self._prefetch_count or len(self._delivered) < self._prefetch_count

    def can_consume_max_estimate(self) -> Optional[int]:
        """How many further messages it may get. None: any number."""
        return max(0, self._prefetch_count - len(self._delivered)) if self._prefetch_count else None

    def append(self, message: Any, delivery_tag: str) -> None:
        """A message is delivered."""
        self._delivered[delivery_tag] = message

    def get(self, delivery_tag: str) -> Any:
        """A message that is delivered and not settled."""
        return self._delivered[delivery_tag]

    def forget(self, delivery_tag: str) -> Any:
        """A message is settled. Returns what was held of it, or None."""
        return self._delivered.pop(delivery_tag, None)

    def up_to(self, delivery_tag: str) -> List[str]:
        """The tags of all messages that were delivered before this one, and its own."""
        tags = list(self._delivered)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self._delivered else []

    def tags(self) -> List[str]:
        """The tags of all messages."""
        return list(self._delivered)

    def restore_unacked(self) -> List[Any]:
        """Gives all messages back."""
        for tag in self.tags():
            self.channel.basic_reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Their leases are given back when the channel is closed."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """The server does it: a message whose lease has ended is ready again."""
