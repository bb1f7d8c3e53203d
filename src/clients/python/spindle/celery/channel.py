"""A channel of kombu: exchanges, queues and messages."""

from __future__ import annotations

import logging
import re
import socket
import warnings
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.transport.virtual.base import UNDELIVERABLE_FMT, UndeliverableWarning
from kombu.transport.virtual.exchange import TopicExchange
from kombu.utils.uuid import uuid

from .. import _queues, _spiderq
from .._failures import reason_of
from .._queue_records import LentTask
from ..errors import Error
from . import messages
from .bindings import ALIVE_SECONDS, Binding
from .qos import QoS

_log = logging.getLogger("spindle")
Callback = Callable[[Any], None]


class Topic(TopicExchange):
    """A topic exchange. A word of a binding is ``*``, ``#`` or itself, so that each binding is a regular expression."""

    def key_to_pattern(self, rkey: str) -> str:
        """The regular expression of a routing key."""
        return "^%s$" % r"\.".join(self.wildcards.get(word) or re.escape(word) for word in rkey.split("."))


class Message(virtual.Message):
    """A message that was delivered."""

    lent: LentTask
    """Its task, under a lease."""
    is_begun = True
    """Whether the consumer may have begun with it. Celery's worker begins when its pool gets the task."""
    reject_reason = ""
    """Why its task has failed."""

    def reject(self, requeue: bool = False) -> None:
        """The message is dead, or given back, with the reason."""
        self.channel.note_reason(self.delivery_tag, self.reject_reason)
        super().reject(requeue=requeue)

    def requeue(self) -> None:
        """The message is given back, with the reason."""
        self.channel.note_reason(self.delivery_tag, self.reject_reason)
        super().requeue()


class Channel(virtual.Channel):
    """A channel. Its messages are tasks under leases, which the connection's puller takes, extends and settles."""

    Message = Message
    QoS = QoS
    do_restore = False
    supports_fanout = True
    exchange_types = {**virtual.Channel.exchange_types, "topic": Topic}
    max_priority = messages.AMQP_PRIORITY_MAX
    body_encoding = None
    from_transport_options = ("deadletter_queue",)

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.closed = False
        self._transport = connection
        # By queue: its consumers in their order, each with its callback and whether it acknowledges nothing.
        self._callbacks: "Dict[str, OrderedDict[str, Tuple[Callback, bool]]]" = {}
        # Why the message that is rejected next has failed.
        self._reasons: Dict[str, str] = {}
        # Queues that go with this channel.
        self._own_queues: Set[str] = set()

    # -------------------------------------------------------------------------------------------- exchanges and queues

    def exchange_declare(
        self,
        exchange: Optional[str] = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """There is an exchange of this type, also after a restart."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        found = self._exchange_type(name)
        if passive:
            if found is None:
                raise _not_found("exchange", name)
            return
        if kind not in self.exchange_types:
            known = ", ".join(self.exchange_types)
            raise ChannelError(f"exchange {name!r} cannot be of type {kind!r}: there are {known}")
        if found is None:
            self._transport.bindings.declare_exchange(name, kind)
        elif found != kind:
            raise ChannelError(f"exchange {name!r} is of type {found!r}: delete it before it is declared as {kind!r}")
        self.state.exchanges[name] = {"type": kind, "table": []}

    def _exchange_type(self, name: str) -> Optional[str]:
        known = self.state.exchanges.get(name)
        found = known["type"] if known else self._transport.bindings.exchange(name)
        if found is not None and not known:
            self.state.exchanges[name] = {"type": found, "table": []}
        return None if found is None else str(found)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """There is no such exchange, and it has no bindings."""
        if if_unused and self._transport.bindings.of_exchange(exchange):
            raise ChannelError(f"exchange {exchange!r} has bindings, so it is in use")
        self._transport.bindings.delete_exchange(exchange)
        self.state.exchanges.pop(exchange, None)

    def queue_declare(
        self,
        queue: Optional[str] = None,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> Any:
        """There is a queue. A durable one needs nothing for that: it is there with its first message. One that goes with
        its owner is remembered, so that it goes also if the owner dies.
        """
        name = queue or f"amq.gen-{uuid()}"
        given = arguments or {}
        expires, ttl = given.get("x-expires"), given.get("x-message-ttl")
        if not passive:
            self._transport.ttls[name] = None if ttl is None else ttl / 1000
            if auto_delete or exclusive or expires is not None:
                seconds = ALIVE_SECONDS if expires is None else expires / 1000
                if name not in self._transport.temporary:
                    self._transport.bindings.declare_temporary(name, seconds)
                    self._transport.temporary[name] = seconds
                if auto_delete or exclusive:
                    self._own_queues.add(name)
        return queue_declare_ok_t(name, self._size(name), 0)

    def prepare_queue_arguments(self, arguments: Dict[str, Any], **kwargs: Any) -> Any:
        """``expires`` and ``message_ttl`` of a queue in the words of AMQP."""
        return base.to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_bind(
        self, queue: str, exchange: Optional[str] = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """The queue gets messages of the exchange, also after a restart."""
        name = exchange or "amq.direct"
        if self.state.has_binding(queue, name, routing_key):
            return
        binding = Binding(name, routing_key or "", queue, self._transport.ttls.get(queue))
        self._transport.bindings.add(binding)
        if queue in self._transport.temporary:
            self._transport.own_bindings.setdefault(queue, []).append(binding)
        self.state.binding_declare(queue, name, routing_key, arguments)

    def queue_unbind(
        self, queue: str, exchange: Optional[str] = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """The queue gets messages of the exchange with this routing key no more."""
        name = exchange or "amq.direct"
        self.state.binding_delete(queue, name, routing_key)
        own = self._transport.own_bindings.get(queue, [])
        own[:] = [binding for binding in own if (binding.exchange, binding.routing_key) != (name, routing_key)]
        self._transport.bindings.remove(Binding(name, routing_key or "", queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """There is no such queue, and it has no bindings. Returns how many messages it had."""
        if if_empty and self._size(queue):
            return 0
        self._own_queues.discard(queue)
        self.state.queue_bindings_delete(queue)
        return int(self._transport.delete_queue(queue))

    def list_bindings(self) -> Any:
        """All bindings: queue, exchange and routing key."""
        return ((found.queue, found.exchange, found.routing_key) for found in self._transport.bindings.of_all())

    def get_table(self, exchange: str) -> List[Any]:
        """The bindings of an exchange, as the exchange types of kombu want them."""
        found = self._transport.bindings.of_exchange(exchange)
        return [self._prepared(binding) for binding in found]

    def _prepared(self, binding: Binding) -> Any:
        kind = self.typeof(binding.exchange)
        return kind.prepare_bind(binding.queue, binding.exchange, binding.routing_key, None)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return True

    def _size(self, queue: str) -> int:
        name = self._transport.names.task_queue(queue)
        return int(self._transport.session.run(_queues.in_queue(name, _spiderq.count())))

    def _purge(self, queue: str) -> int:
        return int(self._transport.bindings.purge(queue, "ready", "delayed"))

    # ---------------------------------------------------------------------------------------------------- publishing

    def basic_publish(self, message: Dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Adds a message to all queues that get it. When kombu repeats this, the queues keep what they have."""
        properties = message["properties"]
        tag = messages.tag_of(properties)
        properties.setdefault("delivery_info", {}).update(exchange=exchange, routing_key=routing_key)
        value = messages.encode(message)
        by_options: Dict[bytes, List[str]] = {}
        for queue, ttl in self._targets(exchange, routing_key).items():
            by_options.setdefault(messages.options_of(message, ttl), []).append(self._transport.names.task_queue(queue))
        for options, queues in by_options.items():
            for part in _parts(queues, len(value)):
                self._transport.session.run(_queues.add(part, tag.encode(), value, False, options))

    def _targets(self, exchange: str, routing_key: str) -> Dict[str, Optional[float]]:
        """The queues that get a message, and how long it stays in each."""
        if not exchange:
            return {routing_key: self._transport.ttls.get(routing_key)}
        bindings = self._transport.bindings.of_exchange(exchange)
        self._exchange_type(exchange)
        table = [self._prepared(binding) for binding in bindings]
        names = self.typeof(exchange).lookup(table, exchange, routing_key, None)
        if not names and self.deadletter_queue:
            warnings.warn(
                UndeliverableWarning(UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)), stacklevel=2
            )
            return {self.deadletter_queue: None}
        ttls = {binding.queue: binding.ttl for binding in bindings}
        return {name: ttls[name] for name in sorted(names)}

    # ----------------------------------------------------------------------------------------------------- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callback, consumer_tag: str, **kwargs: Any
    ) -> Optional[str]:
        """The callback gets the messages of the queue."""
        tag = consumer_tag or uuid()
        self._tag_to_queue[tag] = queue
        self._callbacks.setdefault(queue, OrderedDict())[tag] = (callback, no_ack)
        self._consumers.add(tag)
        self.on_consumers_changed()
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """The consumer gets no more messages."""
        if consumer_tag in self._consumers:
            self._consumers.remove(consumer_tag)
            queue = self._tag_to_queue.pop(consumer_tag)
            self._callbacks[queue].pop(consumer_tag, None)
            if not self._callbacks[queue]:
                del self._callbacks[queue]
            self.on_consumers_changed()

    def on_consumers_changed(self) -> None:
        """The puller takes what is consumed now."""
        queues = [self._transport.names.task_queue(queue).encode() for queue in self._callbacks]
        if queues or self._transport.has_puller:
            self._transport.puller.consume(self.channel_id, queues, self.qos.prefetch_count)

    def deliver(self, lent: LentTask) -> bool:
        """Calls the callback of a message. False: there is none for it."""
        queue = self._transport.names.queue(lent.queue)
        consumers = self._callbacks.get(queue)
        message = self._message_of(lent) if consumers else None
        if not consumers or message is None:
            if not consumers:
                self._transport.puller.settle(lent.lend_key, _queues.not_begun(lent))
            return False
        # The consumers of a queue take turns.
        tag, (callback, no_ack) = next(iter(consumers.items()))
        consumers.move_to_end(tag)
        message.delivery_info["consumer_tag"] = tag
        if no_ack:
            self._transport.puller.settle(lent.lend_key, _queues.done(lent))
        else:
            self.qos.append(message, message.delivery_tag)
        try:
            callback(message)
        except Exception as error:
            # The consumer may settle it nevertheless. Otherwise it has failed when the channel ends.
            message.is_begun, message.reject_reason = True, message.reject_reason or reason_of(error)
            raise
        return True

    def _message_of(self, lent: LentTask) -> Any:
        """The message of a task. None: it is none, and is buried."""
        try:
            return self._decoded(lent)
        except Exception as error:
            # Whoever may add tasks to the queue chooses the bytes. No bytes may end a worker.
            fault = str(error) if isinstance(error, ValueError) else reason_of(error)
            _log.error("task %r of %r is buried, since it is no message of kombu: %s", lent.key, lent.queue, fault)
            self._transport.puller.settle(lent.lend_key, _queues.bury(lent, f"no message of kombu: {fault}"))
            return None

    def _decoded(self, lent: LentTask) -> Any:
        raw = messages.decode(lent.value)
        properties = raw["properties"]
        properties["delivery_tag"] = str(lent.lend_key)
        info = properties["delivery_info"] = properties.get("delivery_info") or {}
        info["redelivered"] = lent.tries > 1
        info.setdefault("priority", properties.get("priority"))
        message = self.Message(raw, channel=self)
        message.lent = lent
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """The next message, or None."""
        transport = self._transport
        command = _queues.lend([transport.names.task_queue(queue)], 1, transport.lease, 0)
        for lent in transport.session.run(command):
            transport.puller.hold(self.channel_id, lent)
            message = self._message_of(lent)
            if message is not None:
                if no_ack:
                    transport.puller.settle(lent.lend_key, _queues.done(lent))
                else:
                    self.qos.append(message, message.delivery_tag)
                return message
        return None

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """The message is done and gone."""
        for tag in self.qos.up_to(delivery_tag) if multiple else [delivery_tag]:
            self._settle(tag, _queues.done)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """The message is given back, or dead, with the reason of its task's failure."""
        reason = self._reasons.pop(delivery_tag, "")
        if requeue:
            self._settle(delivery_tag, lambda lent: _queues.give_back(lent, None, reason or "requeued"))
        else:
            self._settle(delivery_tag, lambda lent: _queues.bury(lent, reason or "rejected"))

    def note_reason(self, delivery_tag: str, reason: str) -> None:
        """Why the message that is rejected next has failed."""
        if reason:
            self._reasons[delivery_tag] = reason

    def _settle(self, delivery_tag: str, item: Callable[[LentTask], bytes]) -> None:
        message = self.qos.forget(delivery_tag)
        if message is not None:
            self._transport.puller.settle(message.lent.lend_key, item(message.lent))

    def basic_recover(self, requeue: bool = False) -> None:
        """Gives all messages back."""
        self.qos.restore_unacked()

    def drain_events(self, timeout: Optional[float] = None, callback: Any = None) -> None:
        """Waits for a message of the connection."""
        self._transport.drain_events(self._transport, timeout=timeout)

    def after_reply_message_received(self, queue: str) -> None:
        """The queue of a reply is not needed any more."""
        self.queue_delete(queue)

    def close(self) -> None:
        """Ends the consumers. Messages that are not settled go back. Those that were not begun keep their tries. Queues go
        that were this channel's alone.
        """
        if self.closed:
            return
        self.closed = True
        transport = self._transport
        self._consumers.clear()
        self._callbacks.clear()
        self._tag_to_queue.clear()
        if transport.session.is_own:
            if transport.has_puller:
                self._give_back()
                transport.puller.leave(self.channel_id)
            try:
                for queue in sorted(self._own_queues):
                    # Another channel of this connection may declare the queue anew, with its bindings.
                    self.state.queue_bindings_delete(queue)
                    transport.delete_queue(queue)
            except (Error, socket.timeout) as error:
                _log.warning("a temporary queue is left to others, who remove it in a while: %s", error)
        self._own_queues.clear()
        if self.connection is not None:
            self.connection.close_channel(self)

    def _give_back(self) -> None:
        """Ends the leases of the messages that were delivered. Those with which a consumer may have begun have failed."""
        for tag in self.qos.tags():
            message = self.qos.get(tag)
            if message.is_begun:
                reason = message.reject_reason or "connection closed"
                self._settle(tag, lambda lent: _queues.give_back(lent, None, reason))
            else:
                self._settle(tag, _queues.not_begun)


def _not_found(kind: str, name: str) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {kind} {name!r}", (50, 10), "Channel.exchange_declare", "404")


def _parts(queues: List[str], size: int) -> List[List[str]]:
    """The queues of each request, which has a bound for names and one for bytes."""
    most = max(1, min(_queues.LIST_MAX, _queues.VALUE_BYTES_MAX // max(1, size)))
    return [queues[at : at + most] for at in range(0, len(queues), most)]
