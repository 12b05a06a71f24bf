#!/bin/sh
# A real batch of jobs, end to end, on a queue of its own: one job for each file
# of the project, a job that fails twice, one that ends dead, a timeout, a delayed
# job, and a service killed in the middle. It ends with 0 only if every outcome
# was as expected.
set -eu

bin=$(realpath "$1")
project=$(realpath "$(dirname "$0")/..")
dir=$(mktemp -d)
service=
wrong=0

q() { "$bin" --dir "$dir" "$@"; }
say() { printf '\n== %s\n' "$*"; }
expect() { # what, got, want
	if [ "$2" = "$3" ]; then
		printf '   ok: %s: %s\n' "$1" "$2"
	else
		printf '   WRONG: %s: got %s, want %s\n' "$1" "$2" "$3"
		wrong=1
	fi
}
state() { q show "$1" | sed -n 's/^State: *//p'; }
attempts() { q show "$1" | sed -n 's/^Attempts: *//p'; }
start() {
	"$bin" serve --dir "$dir" --workers 2 2>>"$dir/service.log" &
	service=$!
	tries=0
	until q service status >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ "$tries" -lt 500 ] || { cat "$dir/service.log"; exit 1; }
		sleep 0.02
	done
}
finish() {
	q service stop >/dev/null 2>&1 || true
	rm -rf "$dir"
}
trap finish EXIT

say "a service on an empty folder"
start
q status

say "one job for each file of the project"
cd "$project"
files=$(find . -type f -not -path './.git/*' -not -name "$(basename "$bin")" | LC_ALL=C sort)
printf '%s\n' "$files" | sed 's/.*/{"argv":["sha256sum","&"],"labels":{"demo":"hash"}}/' >"$dir/jobs.jsonl"
count=$(wc -l <"$dir/jobs.jsonl" | tr -d ' ')
ids=$(q enqueue --file "$dir/jobs.jsonl")
printf '   %s jobs enqueued\n' "$count"

say "jobs that do not go well"
cat >"$dir/flaky.sh" <<'EOF'
n=$(cat "$1" 2>/dev/null || echo 0)
echo $((n + 1)) >"$1"
echo "run $((n + 1))"
[ "$n" -ge 2 ]
EOF
q enqueue --id flaky --backoff-base 0.5 -- sh "$dir/flaky.sh" "$dir/flaky.count"
q enqueue --id hopeless --max-retries 1 --backoff-base 1 'echo "it cannot work" >&2; exit 3'
q enqueue --id slow --timeout 1s --max-retries 0 'sleep 60'
q enqueue --id later --delay 3s 'echo it is time'

say "the service is killed in the middle, with a job running"
long=$(q enqueue 'echo begun; sleep 4; echo done')
until [ "$(state "$long")" = processing ]; do sleep 0.05; done
pid=$(q show "$long" | sed -n 's/^Pid: *//p')
kill -9 "$service"
wait "$service" 2>/dev/null || true
printf '   killed; job %s goes on as process %s\n' "$long" "$pid"
start
expect "process of the running job" "$(q show "$long" | sed -n 's/^Pid: *//p')" "$pid"

say "progress"
last=
for _ in $(seq 300); do
	left=$(q list -s waiting --label demo=hash -q | wc -l | tr -d ' ')
	if [ "$left" != "$last" ]; then
		printf '   %s of %s files wait\n' "$left" "$count"
		last=$left
	fi
	[ "$left" -gt 0 ] || break
	sleep 0.2
done
for id in $ids; do q wait "$id" --timeout 30 || { expect "job $id" "exit $?" 0; }; done
expect "files hashed" "$(q list -s completed --label demo=hash -q | wc -l | tr -d ' ')" "$count"
first=$(printf '%s\n' "$ids" | head -n 1)
expect "a result" "$(q logs "$first")" "$(sha256sum "$(printf '%s\n' "$files" | head -n 1)")"

say "what became of the others"
q wait flaky --timeout 30 || true
expect "job that fails twice" "$(state flaky), $(attempts flaky)" "completed, 3 of 4"
q wait slow --timeout 30 || expect "exit code of wait" "$?" 124
expect "job over its time" "$(state slow)" "dead (timed_out)"
q wait later --timeout 30
expect "delayed job" "$(q logs later)" "it is time"
expect "job that outlived the service" "$(q wait "$long" --timeout 30 && q logs "$long" | tr '\n' ' ')" "begun done "

say "the dead-letter queue"
q wait hopeless --timeout 30 || expect "exit code of wait" "$?" 3
q dlq list
q show hopeless
expect "dead jobs" "$(q dlq list -q | LC_ALL=C sort | tr '\n' ' ')" "hopeless slow "
q dlq retry hopeless >/dev/null
q wait hopeless --timeout 30 || expect "it fails again" "$?" 3
expect "its history stays" "$(q show hopeless --json | grep -o '"attempt":' | wc -l | tr -d ' ')" 4

say "how the queue is now"
q status

[ "$wrong" -eq 0 ] || { printf '\nSomething was not as expected.\n'; exit 1; }
printf '\nEverything was as expected.\n'
