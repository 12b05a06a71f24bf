#!/usr/bin/env bash
# All kinds of stops. Running jobs may finish; after stop_timeout, the service ends them and
# returns them to the queue. No process is left, and the returned jobs run again.
. "$(dirname "$0")/../lib/all.sh"

package new failpoint
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
q root config set workers 8 >/dev/null
q root config set stop_timeout 3s >/dev/null
q root config set kill_after 1s >/dev/null

# sleeper ID... starts jobs that run until the file go exists. They record each run in a file.
sleeper() {
	local id
	for id in "$@"; do
		q alice enqueue --id "$id" --command "echo run >> runs-$id; until [ -e go ]; do sleep 0.1; done" >/dev/null
	done
	within 10 in_state processing "$@" >/dev/null
}
# stubborn ID... starts jobs that also ignore SIGTERM and have a child process in another session.
stubborn() {
	local id
	for id in "$@"; do
		q alice enqueue --id "$id" --command "echo run >> runs-$id; trap '' TERM; setsid sleep 4321 & until [ -e go ]; do sleep 0.1; done; kill %1" >/dev/null
	done
	within 10 in_state processing "$@" >/dev/null
}
runs() { box_sh "wc -l < /home/alice/runs-$1"; }
empty() { no_members "$runners" && no_members "$service" && refuses box pgrep -f 'sleep 4321'; }
fresh() {
	box_sh 'rm -f /home/alice/go /home/alice/runs-*'
	q root rm --state completed >/dev/null 2>&1 || true
	q root rm --state dead >/dev/null 2>&1 || true
}
# again ID... starts the service and checks that the returned jobs run again.
again() {
	local id
	promise "$what: the service starts again" box systemctl start queuectl
	promise "$what: the jobs run again" within 10 in_state processing "$@"
	as alice touch go
	promise "$what: ... and end" within 15 in_state completed "$@"
	for id in "$@"; do promise "$what: $id ran twice, and its history says why" twice "$id"; done
}
twice() {
	same 2 "$(runs "$1")" || return 1
	job "$1" '.history[0] | "\(.state) \(.reason) \(.error)"' | tee /dev/stderr | grep -Eq 'stopped|interrupted|lost'
}
# took SECONDS COMMAND... fails if the command takes longer.
took() {
	local most=$1 began=$EPOCHREALTIME ms
	shift
	"$@" || return 1
	ms=$(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000))
	echo "$ms ms"
	[ "$ms" -lt $((most * 1000)) ]
}

what='stop with a job that finishes in time'
fresh
q alice enqueue --id short --command 'echo run >> runs-short; sleep 1.5; echo done' >/dev/null
within 5 in_state processing short >/dev/null
promise "$what: systemctl stop" took 4 box systemctl stop queuectl
promise "$what: no process is left in the control groups" empty
promise "$what: the unit has not failed" unit_is "$service" Result success
promise "$what: the service starts again" box systemctl start queuectl
promise "$what: the job's result was stored" within 5 job_is short '"\(.state) \(.attempts)"' 'completed 1'
promise "$what: the job ran once" same 1 "$(runs short)"

what='stop with jobs that do not finish'
fresh
sleeper a1 a2
stubborn b1 b2
promise "$what: systemctl stop returns within stop_timeout plus kill_after" took 8 box systemctl stop queuectl
promise "$what: no process is left in the control groups" empty
promise "$what: the unit is inactive" unit_is "$service" ActiveState inactive
promise "$what: ... and has not failed" unit_is "$service" Result success
again a1 a2 b1 b2

what='stop while the unit is about to restart'
fresh
drop_in "$service" '[Service]' RestartSec=20s
sleeper c1
stubborn c2
box kill -9 "$(main_pid)"
promise "$what: systemd waits before it restarts the service" within 5 unit_is "$service" SubState auto-restart
promise "$what: the jobs are still running" refuses no_members "$runners"
box systemctl stop queuectl 2>/dev/null
promise "$what: the unit is inactive" unit_is "$service" ActiveState inactive
promise "$what: the runners notice the stop themselves, and no process is left" within 15 empty
drop_in "$service"
again c1 c2

what='stop during the ExecStopPost of a crash'
fresh
drop_in "$service" '[Service]' 'ExecStopPost=/bin/sleep 3'
sleeper d1
box kill -9 "$(main_pid)"
promise "$what: ExecStopPost is running" within 3 unit_is "$service" SubState stop-post
box systemctl stop queuectl 2>/dev/null
promise "$what: no process is left" within 15 empty
drop_in "$service"
again d1

what='stop of a service that hangs'
fresh
box_put "$failpoint_binary" /usr/lib/queuectl-failpoint 755
box touch /run/queuectl/go
drop_in "$service" '[Service]' TimeoutStopSec=10 BindReadOnlyPaths=/usr/lib/queuectl-failpoint:/usr/libexec/queuectl/queuectld \
	Environment=QUEUECTL_FAILPOINTS=commit=wait:/run/queuectl/go
box systemctl restart queuectl
within 5 answers >/dev/null
sleeper e1
stubborn e2
box rm /run/queuectl/go
q bob enqueue true >/dev/null 2>&1 &
hung=$!
sleep 0.3
promise "$what: stop returns" took 25 box systemctl stop queuectl
promise "$what: no process is left" empty
kill "$hung" 2>/dev/null || true
wait "$hung" || true
drop_in "$service"
box systemctl reset-failed queuectl 2>/dev/null || true
again e1 e2

what='stop of a stopped process (SIGSTOP)'
fresh
sleeper f1
box kill -STOP "$(main_pid)"
promise "$what: stop returns" took 15 box systemctl stop queuectl
promise "$what: no process is left" empty
again f1

what='stop of the socket unit'
fresh
sleeper g1
box systemctl stop queuectl.socket queuectl.service
promise "$what: no process is left" empty
promise "$what: a client gets the command that starts the service" ends 3 'systemctl start' q alice list
box systemctl start queuectl.socket
again g1

what='stop, then a client connects'
fresh
box systemctl stop queuectl.service 2>/dev/null
promise "$what: the socket is still active" unit_is queuectl.socket ActiveState active
promise "$what: the client starts the service through the socket" same here "$(q alice run -- echo here)"
promise "$what: ... and the service is active" unit_is "$service" ActiveState active

what='jobs that wait over a stop'
fresh
q root config set workers 1 >/dev/null
sleeper h1
q alice enqueue --id h2 --command 'echo run >> runs-h2' >/dev/null
box systemctl stop queuectl 2>/dev/null
as alice touch go
box systemctl start queuectl
promise "$what: the jobs run" within 10 in_state completed h1 h2
promise "$what: the waiting job ran once" same 1 "$(runs h2)"
q root config set workers 8 >/dev/null

what=reboot
fresh
sleeper i1
stubborn i2
q root config set workers 2 >/dev/null
q alice enqueue --id i3 --command 'echo run >> runs-i3' >/dev/null
since=$(box date '+%F %T')
began=$SECONDS
box_reboot
note "the reboot took $((SECONDS - began)) s"
promise "$what: the reboot took at most 15 s" test $((SECONDS - began)) -le 15
promise "$what: the service answers" within 10 answers
promise "$what: nothing had to be killed at shutdown" refuses box_sh "journalctl -b -1 --since '$since' -o cat --no-pager | grep -E 'Failed with result .timeout|State .stop-sig(term|kill). timed out' | grep ."
promise "$what: the interrupted jobs run again" within 10 in_state processing i1 i2
as alice touch go
promise "$what: all jobs end, including the waiting job" within 15 in_state completed i1 i2 i3
for id in i1 i2; do promise "$what: $id ran twice, and its history says why" twice "$id"; done
promise "$what: the waiting job ran once" same 1 "$(runs i3)"

what='power cut'
fresh
q root config set workers 8 >/dev/null
sleeper j1
q alice enqueue --id j2 --delay 2s --command 'echo run >> runs-j2' >/dev/null
box sync
box_cut
box_up
promise "$what: the service answers" within 10 answers
promise "$what: the interrupted job runs again" within 10 in_state processing j1
promise "$what: ... and its history says that it was interrupted" job_is j1 '.history[0].reason' interrupted
as alice touch go
promise "$what: all jobs end" within 15 in_state completed j1 j2
promise "$what: no unit has failed" same '' "$(box systemctl list-units --failed --no-legend)"
summary
