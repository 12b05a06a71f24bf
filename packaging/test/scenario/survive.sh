#!/usr/bin/env bash
# Ten long jobs continue through restarts, crashes and upgrades of the service. Each prints
# numbered lines until its test file exists, and then exits with its own code.
. "$(dirname "$0")/../lib/all.sh"

package old new next failpoint
box_up
install_deb "$old_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
box_put "$failpoint_binary" /usr/lib/queuectl-failpoint 755
q root config set workers 12 >/dev/null

# long_job N starts a job that runs until the file end-N exists. It records its pid at each
# start, and the number of printed lines at its end.
long_job() {
	q alice enqueue --id "long-$1" --max-retries 0 --command "echo \$\$ >> started-$1
		i=0; until [ -e end-$1 ]; do i=\$((i+1)); echo $1 line \$i; echo $1 error \$i >&2; sleep 0.05; done
		echo \$i > lines-$1; exit $((10 + $1))" >/dev/null
}
begin() {
	local n
	jobs=$*
	box_sh 'rm -f /home/alice/started-* /home/alice/end-* /home/alice/lines-*'
	for n in $jobs; do long_job "$n"; done
	within 10 all_started >/dev/null
	pids=$(pids_now)
	runner=$(runner_pids | xargs)
}
all_started() {
	local n
	[ "$(states | sort -u)" = processing ] && for n in $jobs; do box test -s "/home/alice/started-$n" || return 1; done
}
# of_all FILTER prints a field of all the jobs, selected by a jq filter.
of_all() { q root list --json --user alice | jq -r "map(select(.id | startswith(\"long-\"))) | sort_by(.id)[] | $1"; }
states() { of_all .state; }
# pids_now prints the pids in the queue. unharmed checks that the jobs have started once and are running.
pids_now() { of_all .pid | xargs; }
unharmed() {
	same "$pids" "$(box_sh 'cat /home/alice/started-*' | xargs)" || return 1
	same "$(wc -w <<<"$pids")" "$(box ps -o pid= -p "${pids// /,}" | wc -l)" || { box ps -eo pid,ppid,user,args; return 1; }
}
known() { same "$pids" "$(pids_now)"; }
# after WHAT [SECONDS] checks that the service answers again and that all jobs are unaffected.
after() {
	promise "$1: the service answers, as a new process" within "${2:-5}" replaced "$before"
	promise "$1: all ten jobs are still running, with the same pids" unharmed
	promise "$1: the queue has the same pids" within 5 known
	promise "$1: other jobs run" same here "$(q bob run -- echo here)"
	before=$(main_pid)
}
# finish WHAT lets the jobs end, and checks their results.
finish() {
	local n
	for n in $jobs; do as alice touch "end-$n"; done
	promise "$1: all ten jobs end" within 20 ended $(printf 'long-%s ' $jobs)
	promise "$1: each with its own exit code, in one attempt" codes
	promise "$1: no job was started twice" same "$pids" "$(box_sh 'cat /home/alice/started-*' | xargs)"
	promise "$1: each with its complete output, on both streams" outputs
}
codes() {
	local n want= got=
	for n in $jobs; do
		want+="long-$n dead $((10 + n)) 1 1|"
		got+="$(job "long-$n" '"\(.id) \(.state) \(.exit_code) \(.attempts) \(.history | length)"')|"
	done
	same "$want" "$got"
}
outputs() {
	local n lines
	for n in $jobs; do
		lines=$(box cat "/home/alice/lines-$n")
		same "$(seq -f "$n line %.0f" "$lines" | sha256sum)" "$(q alice logs --stdout "long-$n" | sha256sum)" || return 1
		same "$(seq -f "$n error %.0f" "$lines" | sha256sum)" "$(q alice logs --stderr "long-$n" | sha256sum)" || return 1
	done
}
# no_old_runner succeeds if no runner uses a program file that has been replaced.
no_old_runner() {
	local pid
	for pid in $(runner_pids); do box readlink "/proc/$pid/exe"; done | tee /dev/stderr | { ! grep -q deleted; }
}

begin 0 1 2 3 4 5 6 7 8 9
promise 'ten jobs run in one runner of the old version' same 1 "$(wc -w <<<"$runner")"
before=$(main_pid)

box systemctl restart queuectl
after 'systemctl restart'
box systemctl try-restart queuectl
after 'systemctl try-restart'

box kill -9 "$before"
after 'kill -9 of the service'

box systemctl kill queuectl
after 'systemctl kill'
box systemctl kill -s KILL queuectl
after 'systemctl kill -s KILL'

# a crash loop does not make the unit fail
crash_loop() {
	local n pid
	for n in 1 2 3 4 5 6; do
		within 5 main_pid_is_another "$before" || return 1
		before=$(main_pid)
		box kill -9 "$before"
		sleep 0.8
	done
}
main_pid_is_another() { local now; now=$(main_pid); [ "$now" != 0 ] && [ "$now" != "${1:-0}" ]; }
before=0
promise 'the service is killed six times in ten seconds' crash_loop
after 'six kills in a row'
promise '... and the unit has not failed' unit_is "$service" ActiveState active

box kill -STOP "$before"
box systemctl restart queuectl
after 'restart of a stopped process'

box systemctl daemon-reload
box systemctl daemon-reexec
promise 'daemon-reexec: the service is the same process' same "$before" "$(main_pid)"
promise 'daemon-reexec: all ten jobs are still running' unharmed
box systemctl restart queuectl
after 'restart after daemon-reexec'

# --- versions
promise 'the package can be upgraded' install_deb "$new_deb"
after 'upgrade'
promise 'upgrade: the service has the new version' says "$new_version" box queuectl status --json
promise 'upgrade: the old runner keeps the ten jobs' says "^$runner" runner_pids
promise 'upgrade: new jobs run in a runner of the new version' same 2 "$(runner_pids | wc -w)"

# If the writer hangs, the service does not notify the watchdog.
box_sh 'touch /run/queuectl/go'
drop_in "$service" '[Service]' WatchdogSec=2 BindReadOnlyPaths=/usr/lib/queuectl-failpoint:/usr/libexec/queuectl/queuectld \
	Environment=QUEUECTL_FAILPOINTS=commit=wait:/run/queuectl/go
box systemctl restart queuectl
after 'restart with a watchdog of 2 s'
sleep 4
promise 'the watchdog does not end a healthy service' same "$before" "$(main_pid)"
box_sh 'rm /run/queuectl/go'
q bob enqueue true >/dev/null 2>&1 &
hung_client=$!
promise 'watchdog: the hung service is ended' within 15 main_pid_is_another "$before"
box_sh 'touch /run/queuectl/go'
wait "$hung_client" || true
after 'watchdog'
promise 'watchdog: the journal says that the service hung' within 3 says 'Watchdog timeout' journal "$service"
promise '... and lists its goroutines' says 'goroutine [0-9]+' journal "$service"
drop_in "$service"
box systemctl restart queuectl
after 'restart without the failpoint'

promise 'the package can be upgraded to a version with a newer runner protocol' install_deb "$next_deb"
after 'newer protocol'
promise 'newer protocol: the service has the newest version' says "$next_version" box queuectl status --json
promise 'newer protocol: the old runner keeps the ten jobs' says "^$runner" runner_pids
promise 'the package can be downgraded' install_deb "$old_deb"
after 'downgrade'
promise 'downgrade: the service has the old version' says "$old_version" box queuectl status --json
promise 'the package can be upgraded again' install_deb "$new_deb"
after 'upgrade again'
finish 'at the end'
promise 'one runner is left' within 10 same 1 "$(runner_pids | wc -w)"
promise '... and it has the installed version' within 10 no_old_runner
promise 'jobs run in this runner' same here "$(q bob run -- echo here)"
summary
