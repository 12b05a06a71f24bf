#!/usr/bin/env bash
# A user's own service: `service install --user`, without root, and its life after
# logout and reboot, which is lingering.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
box systemctl stop queuectl.service queuectl.socket # this is not about the system's own
uid=$(box id -u eve)

# eve WORD... is a command of a user who is logged in.
eve() { as eve env "XDG_RUNTIME_DIR=/run/user/$uid" "$@"; }

box loginctl enable-linger eve
within 10 unit_is "user@$uid.service" ActiveState active >/dev/null
promise 'service install --user' eve queuectl service install --user
promise '... twice is the same' eve queuectl service install --user
box mv /var/lib/systemd/linger/eve /root/linger # without telling logind, which would end it at once
promise 'without lingering doctor explains it' says 'loginctl enable-linger' eve queuectl doctor
box mv /root/linger /var/lib/systemd/linger/eve
promise 'with it there is nothing to say' says '^0$' eve sh -c 'queuectl doctor | grep -c linger; true'
promise 'the unit is in the user'"'"'s own folder' as eve test -f .config/systemd/user/queuectl.service
promise 'service start --user' eve queuectl service start --user
promise '... it is active' within 5 eve systemctl --user is-active queuectl
promise 'a job runs, as its user' same eve "$(eve queuectl run -- id -un)"
promise '... in the user'"'"'s own folder' as eve test -f .local/state/queuectl/queuectl.db
promise 'service status --user' says 'running|active' eve queuectl service status --user
promise 'nobody else can speak to it' refuses as alice queuectl --socket /home/eve/.local/state/queuectl/queuectl.sock status
# glutton takes more memory than its limit: only a control group ends it by a signal.
memory=$(box_sh "grep -qsw memory /sys/fs/cgroup/user.slice/user-$uid.slice/user@$uid.service/cgroup.controllers && echo yes || true")
glutton() { eve queuectl run --require-limits --memory 64M --max-retries 0 --id "$1" -- perl -e '$x = "a" x 400_000_000; sleep 30' >/dev/null 2>&1 || true; }
mine_is() { same "$2" "$(eve queuectl show "$1" --json | jq -r "${3:-.state}")"; }
in_its_group() {
	if [ "$memory" = yes ]; then
		glutton "$1"
		promise '... memory is the control group'"'"'s to enforce' mine_is "$1" 'dead oom_killed' '"\(.state) \(.reason)"'
		promise '... which doctor says' says 'memory is enforced by the job.s control group' eve queuectl doctor
		promise '... and the runner lives' same fine "$(eve queuectl run -- echo fine)"
	else
		note 'no memory controller for users here'
		promise '... what is not enforced is refused where it must be' refuses eve queuectl enqueue --require-limits --memory 64M true
	fi
	promise '... a job has a group of its own' says '/job-[0-9]+$' eve queuectl run -- sed -n 's/^0:://p' /proc/self/cgroup
}
in_its_group registered
eve queuectl enqueue --id long --command 'until [ -e go ]; do sleep 0.1; done' >/dev/null
within 5 mine_is long processing >/dev/null
pid=$(eve queuectl show long --json | jq -r .pid)
promise 'service restart --user' eve queuectl service restart --user
promise '... touches no job' within 5 mine_is long "$pid" .pid
box kill -9 "$(eve systemctl --user show -p MainPID --value queuectl)"
promise 'kill -9 touches no job' within 5 mine_is long "$pid" .pid
promise '... and the unit is up' within 5 eve systemctl --user is-active queuectl
eve queuectl config set stop_timeout 1s >/dev/null
eve queuectl enqueue --id waits --delay 1h --command 'echo after' >/dev/null
box_reboot
promise 'after a reboot it is up, for a user who lingers' within 10 eve systemctl --user is-active queuectl
promise '... and knows its jobs' within 5 mine_is waits pending
promise '... what was stopped runs again and says so' within 5 mine_is long stopped '.history[0].reason'
as eve touch go
promise '... and ends' within 5 mine_is long completed
promise 'service stop --user' eve queuectl service stop --user
promise '... leaves nothing running' within 5 box_sh '! pgrep -u eve -af "[q]ueuectl" | grep .'
promise 'service uninstall --user' eve queuectl service uninstall --user
promise '... twice is the same' eve queuectl service uninstall --user
promise '... the unit is gone' as eve test ! -e .config/systemd/user/queuectl.service
promise '... the queue is kept' as eve test -f .local/state/queuectl/queuectl.db
# --- the same without a unit: a service that enqueue starts by the way
promise 'one that is started by the way runs jobs' same fine "$(eve queuectl run -- echo fine)"
in_its_group by-the-way
scope_of() { box_sh "sed -n 's/^0:://p' /proc/$(box pgrep -u eve -f '^[^ ]*queuectl runner --dir' | head -n 1)/cgroup"; }
promise '... its runner is in a scope of the user'"'"'s manager' says "user@$uid.service/.*\\.scope/supervisor$" scope_of
box kill -9 "$(box pgrep -u eve -f 'queuectld serve' | head -n 1)"
promise '... which outlives the service' says '\.scope/supervisor$' scope_of
promise '... and serves the next one' same again "$(eve queuectl run -- echo again)"
promise 'service stop ends both' eve queuectl service stop
promise '... and the scope' within 10 box_sh '! pgrep -u eve -af "[q]ueuectl runner" | grep .'
promise 'as root, over the package'"'"'s files: refused, with the reason' ends 5 'package|dpkg' box queuectl service install
summary
