# The queue in a box, and the people who use it. Sourced.

service=queuectl.service
runners=queuectl-runner.slice

# people creates the users: alice and bob submit jobs, olga is an operator, adam is an
# administrator, rita only reads, and eve has no rights.
people() {
	local user
	for user in alice bob olga adam rita eve; do
		box useradd --create-home --shell /bin/sh "$user"
		box chmod 0700 "/home/$user"
	done
	for user in alice bob olga adam rita www-data; do box usermod -aG queuectl "$user"; done
	box usermod -aG queuectl-admin adam
	box mkdir -p /home/www-data
	box chown www-data: /home/www-data
}

# install_deb PACKAGE installs a .deb, as apt does without a network.
install_deb() {
	box_put "$1" /root/package.deb
	box dpkg --force-confold -i /root/package.deb
}

# q USER WORD... runs queuectl as a user or as root.
q() {
	local user=$1
	shift
	if [ "$user" = root ]; then box queuectl "$@"; else as "$user" queuectl "$@"; fi
}

# job ID FILTER prints a field of a job, selected by a jq filter, as root sees it.
job() { q root show "$1" --json | jq -r "$2"; }
job_is() { same "$3" "$(job "$1" "$2")"; }

# in_state STATE ID... succeeds if all these jobs are in the state, and ended ID... if they have ended.
in_state() {
	local want=$1 id
	shift
	for id in "$@"; do job_is "$id" .state "$want" || return 1; done
}
ended() {
	local id
	for id in "$@"; do
		job "$id" '"\(.id) \(.state)"' | tee /dev/stderr | grep -qE ' (completed|dead|cancelled)$' || return 1
	done
}

answers() { q root status; }
main_pid() { unit "$service" MainPID; }

# replaced PID succeeds if the service is up again, as another process, and answers.
replaced() {
	local now
	now=$(main_pid)
	[ "$now" != 0 ] && [ "$now" != "$1" ] && unit_is "$service" ActiveState active && answers
}

# members UNIT lists the processes in the unit's cgroup and below, by their pids in the box.
members() {
	local group
	group=$(unit "$1" ControlGroup)
	[ -n "$group" ] || return 0
	box_sh "d=/sys/fs/cgroup/unified; [ -d \$d ] || d=/sys/fs/cgroup; find \$d$group -name cgroup.procs -exec cat {} + 2>/dev/null | sort -n"
}

# no_members UNIT succeeds if the unit has no process.
no_members() {
	local pids pid
	pids=$(members "$1")
	[ -z "$pids" ] && return
	for pid in $pids; do box ps -o pid=,user=,stat=,args= -p "$pid"; done
	return 1
}

# runner_pids lists the runners without their watchdogs, oldest first; runner_units the units that are active.
runner_pids() { box pgrep -f '^/usr/bin/queuectl runner --dir ' || true; }
runner_units() { box systemctl list-units --no-legend --plain 'queuectl-runner@*' | awk '$3 == "active" {print $1}'; }
runner_count() { runner_units | wc -l; }

# what_happened prints the last messages of service and runners, for a failed scenario.
what_happened() {
	box journalctl --sync || true
	box journalctl --no-pager -b -n "${1:-30}" -o short-precise -u "$service" -u 'queuectl-runner@*' -u queuectl.socket -u queuectl-runner.socket || true
}
