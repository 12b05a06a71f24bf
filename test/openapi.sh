#!/usr/bin/env bash
# Checks the page's HTTP API with two external tools. A validator of OpenAPI reads the description of the API.
# schemathesis sends requests made from the description and compares the replies with it. Together with their
# installation, the tools take at most two minutes on an idle machine.
# Usage: test/openapi.sh [DIRECTORY OF THE PROGRAMS]
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
leave() {
	code=$?
	trap - EXIT
	[ -z "${XDG_STATE_HOME:-}" ] || queuectl service stop >/dev/null 2>&1 || true
	rm -rf "$work"
	exit "$code"
}
trap leave EXIT

bin=${1:-$work/bin}
[ $# -gt 0 ] || CGO_ENABLED=0 go build -trimpath -o "$bin/" ./cmd/...
python3 -m venv "$work/venv"
timeout 90 "$work/venv/bin/pip" install --quiet --disable-pip-version-check -r test/openapi-requirements.txt

export HOME=$work/home XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config XDG_RUNTIME_DIR=$work/run PATH=$bin:$PATH
mkdir -m 700 "$HOME" "$XDG_STATE_HOME" "$XDG_CONFIG_HOME" "$XDG_RUNTIME_DIR"
printf '%s\n' 'echo hello' 'exit 3' 'sleep 600' >"$work/jobs"
queuectl enqueue --max-retries 0 --label team=a --lines "$work/jobs" >/dev/null
queuectl schedule add nightly '0 3 * * *' -- true >/dev/null
queuectl web start --listen 127.0.0.1:0 >/dev/null
link=$(queuectl web open)

timeout 150 "$work/venv/bin/python" test/openapi.py "$link" "$work"
