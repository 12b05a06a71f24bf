"""Validates the description of the HTTP API and runs schemathesis against the API; see openapi.sh.

Usage: openapi.py LINK DIRECTORY, with a link that `queuectl web open` printed.
"""

import http.client
import json
import os
import subprocess
import sys
import urllib.parse

from openapi_spec_validator import validate

link, work = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2]
host, port = link.netloc, link.port


def ask(method, path, body=None, headers=None):
    """Sends a request to the page by its address: not every system resolves names below localhost."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, {"Host": host, **(headers or {})})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


secret = urllib.parse.parse_qs(link.query)["link"][0]
form = {"Content-Type": "application/x-www-form-urlencoded"}
status, headers, body = ask("POST", "/open", urllib.parse.urlencode({"link": secret}), form)
if status != 303:
    sys.exit(f"the link starts no session: {status}: {body[:200]!r}")
cookie = headers["Set-Cookie"].split(";")[0]

status, _, body = ask("GET", "/api/openapi.json", headers={"Cookie": cookie})
description = json.loads(body)
validate(description)
print(f"openapi-spec-validator: {len(description['paths'])} paths are described soundly")

path = os.path.join(work, "openapi.json")
with open(path, "wb") as f:
    f.write(body)
config = os.path.join(work, "schemathesis.toml")
with open(config, "w") as f:
    f.write(f"[auth.openapi.session]\napi_key = {json.dumps(cookie.partition('=')[2])}\n")
run = subprocess.run(
    [
        os.path.join(os.path.dirname(sys.executable), "schemathesis"), "--config-file", config, "run", path,
        "--url", f"http://127.0.0.1:{port}",
        "-H", f"Host: {host}",
        "--exclude-path", "/api/events",  # its answer does not end
        "--phases", "examples,coverage,fuzzing",
        "--checks", "all",
        # OpenAPI cannot say that parameters exclude each other, or that a user must exist.
        "--exclude-checks", "positive_data_acceptance",
        "--max-examples", "15", "--seed", "1", "--no-shrink", "--request-timeout", "10",
        "--suppress-health-check", "all",
    ],
    cwd=work,
)
sys.exit(run.returncode)
