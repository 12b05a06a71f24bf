# The common start of all scenarios. Sourced by the scripts in scenario/.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=$(cd "$here/../.." && pwd)
scenario=$(basename "$0" .sh)
. "$here/lib/say.sh"
. "$here/lib/root.sh"
. "$here/lib/box.sh"
. "$here/lib/packages.sh"
. "$here/lib/queue.sh"

[ "$(id -u)" = 0 ] || {
	echo 'run this script as root, because it starts a container' >&2
	exit 1
}

# leave ends the box, also after a failure. KEEP=1 leaves it running for inspection.
leave() {
	local code=$?
	trap - EXIT
	set +e
	if [ "$code" != 0 ] && [ -n "$box_init" ]; then what_happened 2>&1 | sed 's/^/     > /'; fi
	if [ -n "${KEEP:-}" ] && [ -n "$box_init" ]; then
		echo "the container is still running; enter it with: nsenter -t $box_init -a; end it with: kill -KILL $box_init"
	else
		box_gone
	fi
	exit "$code"
}
trap leave EXIT
trap 'bad "the command in line $LINENO failed: $BASH_COMMAND" </dev/null' ERR
trap 'exit 130' INT
trap 'exit 143' TERM

needs systemd-container mmdebstrap jq
make_root
