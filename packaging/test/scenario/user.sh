#!/usr/bin/env bash
# A user's own service: `service install --user`, without root. With lingering, it survives
# logout and reboot.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
box systemctl stop queuectl.service queuectl.socket # this scenario does not use the system service
uid=$(box id -u eve)

# eve WORD... runs a command as the logged-in user eve.
eve() { as eve env "XDG_RUNTIME_DIR=/run/user/$uid" "$@"; }

box loginctl enable-linger eve
within 10 unit_is "user@$uid.service" ActiveState active >/dev/null
promise 'service install --user succeeds' eve queuectl service install --user
promise '... also a second time' eve queuectl service install --user
box mv /var/lib/systemd/linger/eve /root/linger # without notifying logind, which would end the user manager immediately
promise 'without lingering, doctor explains how to enable it' says 'loginctl enable-linger' eve queuectl doctor
box mv /root/linger /var/lib/systemd/linger/eve
promise 'with lingering, doctor does not mention it' says '^0$' eve sh -c 'queuectl doctor | grep -c linger; true'
promise 'the unit is in the user'"'"'s own directory' as eve test -f .config/systemd/user/queuectl.service
promise 'service start --user succeeds' eve queuectl service start --user
promise '... and the service is active' within 5 eve systemctl --user is-active queuectl
promise 'a job runs as the user' same eve "$(eve queuectl run -- id -un)"
promise '... and the queue is in the user'"'"'s own directory' as eve test -f .local/state/queuectl/queuectl.db
promise 'service status --user says that the service is running' says 'running|active' eve queuectl service status --user
promise 'another user cannot connect to the service' refuses as alice queuectl --socket /home/eve/.local/state/queuectl/queuectl.sock status
# glutton uses more memory than its limit. Only a control group ends it with a signal.
memory=$(box_sh "grep -qsw memory /sys/fs/cgroup/user.slice/user-$uid.slice/user@$uid.service/cgroup.controllers && echo yes || true")
glutton() { eve queuectl run --require-limits --memory 64M --max-retries 0 --id "$1" -- perl -e '$x = "a" x 400_000_000; sleep 30' >/dev/null 2>&1 || true; }
mine_is() { same "$2" "$(eve queuectl show "$1" --json | jq -r "${3:-.state}")"; }
in_its_group() {
	if [ "$memory" = yes ]; then
		glutton "$1"
		promise '... a job above its memory limit is killed by its control group' mine_is "$1" 'dead oom_killed' '"\(.state) \(.reason)"'
		promise '... doctor says that the control group enforces the limit' says 'memory is enforced by the job.s control group' eve queuectl doctor
		promise '... and the runner is still running' same fine "$(eve queuectl run -- echo fine)"
	else
		note 'skipped: users of this machine have no memory controller'
		promise '... and --require-limits rejects a limit that is not enforced' refuses eve queuectl enqueue --require-limits --memory 64M true
	fi
	promise '... and each job has its own control group' says '/job-[0-9]+$' eve queuectl run -- sed -n 's/^0:://p' /proc/self/cgroup
}
in_its_group registered
eve queuectl enqueue --id long --command 'until [ -e go ]; do sleep 0.1; done' >/dev/null
within 5 mine_is long processing >/dev/null
pid=$(eve queuectl show long --json | jq -r .pid)
promise 'service restart --user succeeds' eve queuectl service restart --user
promise '... and the job is still the same process' within 5 mine_is long "$pid" .pid
box kill -9 "$(eve systemctl --user show -p MainPID --value queuectl)"
promise 'after kill -9 of the service, the job is still the same process' within 5 mine_is long "$pid" .pid
promise '... and the unit is active' within 5 eve systemctl --user is-active queuectl
eve queuectl config set stop_timeout 1s >/dev/null
eve queuectl enqueue --id waits --delay 1h --command 'echo after' >/dev/null
box_reboot
promise 'after a reboot, the service of a lingering user is active' within 10 eve systemctl --user is-active queuectl
promise '... and has its jobs' within 5 mine_is waits pending
promise '... the stopped job runs again, and its history says so' within 5 mine_is long stopped '.history[0].reason'
as eve touch go
promise '... and ends' within 5 mine_is long completed
promise 'service stop --user succeeds' eve queuectl service stop --user
promise '... and no process is left' within 5 box_sh '! pgrep -u eve -af "[q]ueuectl" | grep .'
promise 'service uninstall --user succeeds' eve queuectl service uninstall --user
promise '... also a second time' eve queuectl service uninstall --user
promise '... the unit is gone' as eve test ! -e .config/systemd/user/queuectl.service
promise '... the queue is kept' as eve test -f .local/state/queuectl/queuectl.db
# --- the same without a unit: a service that `queuectl run` starts in the background
promise 'run starts a service in the background, which runs the job' same fine "$(eve queuectl run -- echo fine)"
in_its_group by-the-way
scope_of() { box_sh "sed -n 's/^0:://p' /proc/$(box pgrep -u eve -f '^[^ ]*queuectl runner --dir' | head -n 1)/cgroup"; }
promise '... its runner is in a scope of the user'"'"'s manager' says "user@$uid.service/.*\\.scope/supervisor$" scope_of
box kill -9 "$(box pgrep -u eve -f 'queuectld serve' | head -n 1)"
within 5 box_sh '! pgrep -u eve -f "[q]ueuectld serve"' # a dying service may still accept a connection
promise '... which keeps running if the service is killed' says '\.scope/supervisor$' scope_of
promise '... and the next service uses it' same again "$(eve queuectl run -- echo again)"
promise 'service stop succeeds' eve queuectl service stop
promise '... and ends the runner and its scope' within 10 box_sh '! pgrep -u eve -af "[q]ueuectl runner" | grep .'
promise 'service install of root is rejected, because a package is installed' ends 5 'package|dpkg' box queuectl service install
summary
