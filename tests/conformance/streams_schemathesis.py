"""Runs schemathesis, which makes requests out of `/openapi.json`, against a gateway and a node.

pip puts it into a virtual environment of its own in the cache folder, once. No answer may be an error of the server
(5xx), and each has a status, a content type and a body that the description names.

    make schemathesis-streams       all routes, [SECONDS=300] at most; SEED=n repeats a run
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = "4.32.5"
CACHE = ROOT / ".cache" / f"schemathesis-{RELEASE}"
INSTALL_SECONDS_MAX = 300
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SETTINGS = {
    "gateway.long.poll.ms": "100",
    "gateway.sse.ms": "200",
    "gateway.consumers.max": "100000",
    "gateway.consumer.idle.ms": "20000",
}
"""Readers that wait do not keep it waiting, and as many consumers as it makes find room."""

HOOKS = '''
"""Half of the paths name what is there; all else is schemathesis's own."""
import json, os
import schemathesis

KNOWN = json.loads(os.environ["KNOWN_NAMES"])

@schemathesis.hook
def map_path_parameters(context, path_parameters):
    for name, value in (path_parameters or {}).items():
        if name in KNOWN and len(str(value)) % 2:
            path_parameters[name] = KNOWN[name]
    return path_parameters
'''


def prepare() -> Path:
    """The program, installed if it is not; SystemExit where it cannot be had."""
    program = CACHE / "bin" / "schemathesis"
    if not (CACHE / "installed").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", CACHE], check=True, timeout=INSTALL_SECONDS_MAX)
            words = [CACHE / "bin" / "pip", "install", "--quiet", f"schemathesis=={RELEASE}"]
            subprocess.run(words, check=True, timeout=INSTALL_SECONDS_MAX)
        except (subprocess.SubprocessError, OSError) as error:
            raise SystemExit(f"schemathesis is not at hand: {error}") from None
        (CACHE / "installed").touch()
    return program


def known_names(gateway: ServedGateway) -> dict[str, str]:
    """What there is, by the parameters of paths."""
    gateway.ask("PUT", "/v1/stream/a/b", b"[1,2]", content_type="application/json")
    gateway.ask("PUT", "/v1/stream/text", b"text", content_type="text/plain")
    gateway.ask("PUT", "/v1/namespaces/a", b"{}", content_type="application/json")
    cluster = gateway.ask("GET", "/v3/clusters").json()["data"][0]["cluster_id"]
    names = {"path": "a/b", "topic": "text", "topic_name": "text", "namespace": "a", "group": "g"}
    gateway.ask("POST", "/consumers/g", b'{"name": "c"}', content_type="application/json")
    names |= {"group_name": "g", "instance": "c"}
    return {**names, "cluster_id": cluster, "partition_id": "0", "broker_id": "1", "consumer_group_id": "g"}


def main() -> int:
    """The exit code of schemathesis."""
    program = prepare()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = Served(folder)
        gateway = ServedGateway(folder, node.bootstrap, SETTINGS)
        try:
            node.start()
            gateway.start()
            (folder / "hooks.py").write_text(HOOKS)
            words = [str(program), "run", f"{gateway.url}/openapi.json", "--checks", CHECKS]
            words += ["--max-time", os.environ.get("SECONDS_MAX", "300"), "--continue-on-failure", "--no-color"]
            words += ["--phases", "coverage,fuzzing", "--generation-database", "none", "--warnings", "off"]
            words += ["--request-timeout", "60", "--seed", os.environ.get("SEED", "1")]
            known = known_names(gateway)
            environment = {
                **os.environ,
                "SCHEMATHESIS_HOOKS": "hooks",
                "KNOWN_NAMES": json.dumps(known),
                "PYTHONPATH": str(folder),
            }
            done = subprocess.run(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
            bugs = [line for line in gateway.log().splitlines() if "code=bug" in line or "Traceback" in line]
            sys.stdout.write("".join(f"{line}\n" for line in bugs))
            return done.returncode or bool(bugs)
        finally:
            gateway.kill()
            node.kill()


if __name__ == "__main__":
    sys.exit(main())
