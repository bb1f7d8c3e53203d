"""Celery on Spindle. Importing this makes ``spindle://`` known as a broker, and as a result backend:

```python
import celery, spindle.celery

app = celery.Celery("shop", broker="spindle://localhost:5557//", backend="spindle://localhost:5555/")
```
It needs ``pip install spindle[celery]``. The server runs with ``--tasks`` and, for results, ``--max-value 1M``.

=====================  =========================================================================================
a task                 is a task of the queue of its name, so the command line and the page show it
acknowledged           done and gone
rejected               dead (buried), with the reason; ``requeue=True`` gives it back
a worker that dies     its leases end, after ``broker_transport_options = {"lease": 60}`` seconds, and others get them
a worker that stops    what its pool had not yet got is no try. What ran and is not acknowledged has failed
ETA and countdown      the server's delay: such a task is not in ``inspect scheduled``, since no worker has it yet
priority               0 to 255, the highest one first
exchanges              direct, topic and fanout; they and their bindings survive a restart
gossip and mingle      no: Celery allows them by the name of the broker
=====================  =========================================================================================
"""

from celery.app.backends import BACKEND_ALIASES
from celery.signals import worker_init
from kombu.transport import TRANSPORT_ALIASES

from . import reasons, worker

TRANSPORT_ALIASES["spindle"] = "spindle.celery.transport:Transport"
BACKEND_ALIASES["spindle"] = "spindle.celery.backend:SpindleBackend"
worker_init.connect(reasons.install, dispatch_uid="spindle.celery.reasons")
worker_init.connect(worker.install, dispatch_uid="spindle.celery.worker")
