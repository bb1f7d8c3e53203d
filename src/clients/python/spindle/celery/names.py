"""The names of kombu's queues as task queues of the server.

```text
mail                     mail, or of a virtual host: shop/mail
u@host.celery.pidbox     kombu.u@host.celery.pidbox      remote control and its replies
celeryev.5f2c…           kombu.celeryev.5f2c…            events
```
So a user needs permission for the queues of its tasks, and one for the prefix ``kombu.``.
"""

from __future__ import annotations

import re

_KOMBU = "kombu."
# Also with the prefix before: a queue that has such a name already gets another one.
_INTERNAL = re.compile(r"(kombu\.)*celeryev|.*\.pidbox\Z", re.S)


class Names:
    """The names within a virtual host.

    >>> names = Names("shop")
    >>> names.task_queue("mail"), names.task_queue("u@host.celery.pidbox")
    ('shop/mail', 'shop/kombu.u@host.celery.pidbox')
    >>> names.queue(b"shop/kombu.u@host.celery.pidbox")
    'u@host.celery.pidbox'
    """

    def __init__(self, virtual_host: str) -> None:
        self._prefix = f"{virtual_host}/" if virtual_host else ""
        self.bindings = f"{self._prefix}{_KOMBU}bindings"

    def task_queue(self, queue: str) -> str:
        """The task queue of a queue."""
        return f"{self._prefix}{_KOMBU if _INTERNAL.match(queue) else ''}{queue}"

    def queue(self, task_queue: bytes) -> str:
        """The queue of a task queue."""
        name = task_queue.decode()[len(self._prefix) :]
        own = name[len(_KOMBU) :]
        return own if name.startswith(_KOMBU) and _INTERNAL.match(own) else name
