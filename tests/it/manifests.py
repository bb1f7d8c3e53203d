"""The manifests of KUBERNETES.md are valid by Kubernetes' schemas, and the flags there and in compose.yml by the program.

Arguments: the program, and the folder of the package.
"""

import os
import pathlib
import re
import subprocess
import sys

try:
    import kubernetes_validate
    import yaml
except ModuleNotFoundError:
    if "SPINDLE_REAL_PEERS" in os.environ:
        raise
    print("skipped: kubernetes_validate is missing; tests/run installs it")
    sys.exit(0)

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
VERSION = "1.29"


def check_flags(words):
    assert words[0] == "serve", words
    shown = subprocess.run([PROGRAM, "config", "show", *words[1:]], capture_output=True, text=True)
    assert shown.returncode == 0, (words, shown.stderr)


page = (FOLDER / "KUBERNETES.md").read_text()
manifests = [manifest for block in re.findall(r"```yaml\n(.*?)```", page, re.S) for manifest in yaml.safe_load_all(block)]
assert [manifest["kind"] for manifest in manifests] == ["Service", "StatefulSet", "NetworkPolicy"], manifests
for manifest in manifests:
    kubernetes_validate.validate(manifest, VERSION, strict=True)
try:
    kubernetes_validate.validate({**manifests[1], "spec": {**manifests[1]["spec"], "replica": 1}}, VERSION, strict=True)
    raise AssertionError("the schema takes everything")
except kubernetes_validate.ValidationError:
    pass

pod = manifests[1]["spec"]["template"]["spec"]
(container,) = pod["containers"]
check_flags(container["args"])
ports = {port["name"]: port["containerPort"] for port in container["ports"]}
assert {port["name"]: port["port"] for port in manifests[0]["spec"]["ports"]} == ports
assert all(any(f":{port}" in word for word in container["args"]) for port in ports.values()), ports
for probe, path in [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")]:
    assert container[probe]["httpGet"] == {"path": path, "port": "admin"}, container[probe]
assert manifests[0]["spec"]["selector"] == manifests[1]["spec"]["selector"]["matchLabels"]
claims = {claim["metadata"]["name"] for claim in manifests[1]["spec"]["volumeClaimTemplates"]}
assert {mount["name"] for mount in container["volumeMounts"]} == claims

compose = yaml.safe_load((FOLDER / "compose.yml").read_text())
services = compose["services"]
check_flags(services["spindle"]["command"])
assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])
for service in services.values():
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        assert source in compose["volumes"] or (FOLDER / source).is_file(), source
(target,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
host, port = target.split(":")
assert host in services and any(word.endswith(":" + port) for word in services[host]["command"]), target
print("ok")
