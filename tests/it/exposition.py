"""The parsers of prometheus_client take /metrics in both formats, and find the same samples.

Argument: the address of the server's --admin.
"""

import os
import sys
import urllib.request

try:
    import prometheus_client  # noqa: F401
except ModuleNotFoundError:
    if "SPINDLE_REAL_PEERS" in os.environ:
        raise
    print("skipped: prometheus_client is missing; tests/run installs it")
    sys.exit(0)

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_older

ADDRESS = sys.argv[1]
FORMATS = {"application/openmetrics-text": parse_open_metrics, "text/plain": parse_older}


def samples(content_type, parse):
    request = urllib.request.Request(f"http://{ADDRESS}/metrics", headers={"Accept": content_type})
    with urllib.request.urlopen(request) as reply:
        assert reply.headers.get_content_type() == content_type, reply.headers
        return {(sample.name, tuple(sorted(sample.labels.items())))
                for family in parse(reply.read().decode()) for sample in family.samples}


open_metrics, older = (samples(*format) for format in FORMATS.items())
assert len(open_metrics) > 100 and open_metrics == older, open_metrics ^ older
endless = {name for name, labels in older if ("le", "+Inf") in labels}
assert "spindle_request_seconds_bucket" in endless, endless
print("ok")
