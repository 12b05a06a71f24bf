# A box is a container in which systemd is PID 1, on a copy of the root. Sourced.
#
#   box_up        boots it: the first time on a new copy of the root, later on the same copy
#   box CMD...    runs a command in it as root, for at most a minute; box_sh 'LINE' runs a
#                 line of shell
#   as USER CMD.. runs a command in it as an ordinary user, in the user's home directory
#   box_reboot    reboots it with systemd and waits until it is up again
#   box_cut       simulates a power cut: all processes end at the same moment
#   box_gone      ends it and removes its files
#
# If the machine has v1 controllers in addition to cgroup2 (hybrid), the box can write to
# them, so that limits of units are enforced. In each hierarchy, all groups of the box are
# below one directory.

box_name=
box_dir=
box_pid=  # of systemd-nspawn
box_init= # of the box's PID 1, as seen from here

# box_groups lists the box's directories in the machine's cgroup hierarchies.
box_groups() {
	local top=/sys/fs/cgroup own line name
	if [ "$(stat -f -c %T "$top")" = cgroup2fs ]; then
		echo "$top/$box_name"
		return
	fi
	while IFS=: read -r _ name own; do
		case $name in
		'') line=$top/unified ;;
		name=systemd) line=$top/systemd ;;
		cpuset) continue ;; # a new cpuset group accepts no process before it is configured
		*) line=$top/$name ;;
		esac
		[ -d "$line" ] || continue
		[ "$name" != '' ] && [ "$name" != name=systemd ] || own=
		echo "$line${own%/}/$box_name"
	done </proc/$$/cgroup
}

# box_up boots the box.
box_up() {
	local group
	if [ -z "$box_name" ]; then
		box_name=queuectl-test-$$
		box_dir=$cache/$box_name
		mkdir -p "$box_dir"
		cp -a --reflink=auto "$root" "$box_dir/root"
	fi
	for group in $(box_groups); do mkdir -p "$group"; done
	(
		for group in $(box_groups); do echo "$BASHPID" >"$group/cgroup.procs"; done
		export SYSTEMD_NSPAWN_LOCK=0
		# PID 1 is a line of shell that makes the controllers writable and then execs systemd.
		exec systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe \
			--machine=box --directory="$box_dir/root" /bin/sh -c '
				for d in /sys/fs/cgroup/*; do
					mountpoint -q "$d" && mount -o remount,bind,rw,nosuid,nodev,noexec "$d"
				done
				exec /lib/systemd/systemd --show-status=0'
	) </dev/null >>"$box_dir/console" 2>&1 &
	box_pid=$!
	within 20 box_find && within 30 box_running || {
		tail -n 20 "$box_dir/console"
		return 1
	}
}

# box_find finds the box's PID 1 among the children of nspawn.
box_find() {
	local child
	for child in $(cat "/proc/$box_pid/task/$box_pid/children"); do
		if [ "$(cat "/proc/$child/comm")" = systemd ]; then
			box_init=$child
			return 0
		fi
	done
	kill -0 "$box_pid"
	return 1
}

box_running() { box systemctl is-system-running | grep -Ex 'running|degraded'; }

box() {
	[ -n "$box_init" ] || {
		echo 'the container is not running'
		return 125
	}
	timeout -k 2 "${BOX_TIMEOUT:-60}" nsenter -t "$box_init" -m -u -i -n -p -C -- env -i LANG=C.UTF-8 TERM=dumb SYSTEMD_PAGER= SYSTEMD_COLORS=0 HOME=/root \
		DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		"$@" </dev/null
}
box_sh() { box /bin/sh -c "$1"; }

# as USER CMD... takes the user's groups from the box's /etc/group, as a login does.
as() {
	local user=$1
	shift
	box setpriv --reuid="$user" --regid="$user" --init-groups --inh-caps=-all \
		env -C "/home/$user" HOME="/home/$user" USER="$user" LOGNAME="$user" "$@"
}
as_sh() { as "$1" /bin/sh -c "$2"; }

# box_put FILE PATH [MODE] copies a file into the box.
box_put() { install -D -m "${3:-644}" "$1" "$box_dir/root$2"; }

# box_ended waits until nspawn has ended.
box_ended() {
	wait "$box_pid" 2>/dev/null || true
	box_pid=
	box_init=
}

box_reboot() {
	box systemctl reboot || true
	box_ended
	box_up
}

# box_cut freezes all processes of the box, so that none can notice the end of another, and
# then kills PID 1; the kernel kills the others with it.
box_cut() {
	local group
	for group in $(box_groups); do
		[ ! -e "$group/cgroup.freeze" ] || echo 1 >"$group/cgroup.freeze"
	done
	sleep 0.2
	kill -KILL "$box_init"
	kill -KILL "$box_pid" 2>/dev/null || true
	box_ended
	for group in $(box_groups); do
		[ ! -e "$group/cgroup.freeze" ] || echo 0 >"$group/cgroup.freeze"
	done
}

box_gone() {
	local group i
	[ -n "$box_name" ] || return 0
	if [ -n "$box_init" ]; then kill -KILL "$box_init" 2>/dev/null || true; fi
	if [ -n "$box_pid" ]; then
		kill -KILL "$box_pid" 2>/dev/null || true
		wait "$box_pid" 2>/dev/null || true
	fi
	for i in 1 2 3 4 5 6 7 8 9 10; do
		for group in $(box_groups); do
			[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
		done
		[ -n "$(box_groups | xargs -r ls -d 2>/dev/null)" ] || break
		sleep 0.1
	done
	rm -rf --one-file-system "$box_dir"
	box_name=
}

# unit UNIT PROPERTY prints a property of a unit. unit_is UNIT PROPERTY VALUE compares it.
unit() { box systemctl show -p "$2" --value "$1"; }
unit_is() { same "$3" "$(unit "$1" "$2")"; }

# drop_in UNIT LINE... adds lines to a unit. Without lines, it removes the earlier ones.
drop_in() {
	local unit=$1
	shift
	if [ $# -gt 0 ]; then
		mkdir -p "$box_dir/root/etc/systemd/system/$unit.d"
		printf '%s\n' "$@" >"$box_dir/root/etc/systemd/system/$unit.d/test.conf"
	else
		rm -rf "$box_dir/root/etc/systemd/system/$unit.d"
	fi
	box systemctl daemon-reload
}

# journal UNIT [OPTION...] prints the messages of a unit in this boot.
journal() {
	local unit=$1
	shift
	box journalctl --sync
	box journalctl --no-pager -b -o cat -u "$unit" "$@"
}
