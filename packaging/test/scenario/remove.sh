#!/usr/bin/env bash
# An upgrade keeps settings, a removal keeps data, a purge leaves no file, and a backup moves
# the queue to another machine.
. "$(dirname "$0")/../lib/all.sh"

package new old
box_up
box_sh 'find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/cache \) -prune -o -print | sort > /root/before'
install_deb "$old_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
q root config set workers 4 >/dev/null

# --- settings
box_sh 'echo "# mine" >> /etc/queuectl/queuectl.toml; echo "# mine" >> /etc/queuectl/runner.conf'
promise 'an upgrade with changed settings succeeds' install_deb "$new_deb"
promise '... keeps the settings' box_sh 'grep -q "^# mine" /etc/queuectl/queuectl.toml && grep -q "^# mine" /etc/queuectl/runner.conf'
promise '... and leaves no second copy of the settings files' box_sh '! ls /etc/queuectl/*.dpkg-new 2>/dev/null'

# --- remove, with jobs running
q root config set stop_timeout 1s >/dev/null
q root config set kill_after 1s >/dev/null
done=$(q alice enqueue 'echo kept')
within 5 in_state completed "$done" >/dev/null
q alice enqueue --id running --command 'trap "" TERM; setsid sleep 4321 & until [ -e go ]; do sleep 0.1; done; kill %1' >/dev/null
within 5 in_state processing running >/dev/null
promise 'the package can be removed while a job is running' box dpkg -r queuectl
promise '... no process is left' box_sh '! pgrep -af "[q]ueuectl|[s]leep 4321" | grep .'
promise '... no unit is left' same '' "$(box_sh 'systemctl list-units --all --plain --no-legend "queuectl*" | grep -vE "not-found|masked|\.slice" || true')"
promise '... no cgroup is left' same '' "$(box_sh 'find /sys/fs/cgroup -name "queuectl*.service" -o -name "queuectl*.socket"')"
promise '... no program and no unit file is left' box_sh '! ls /usr/bin/queuectl /usr/libexec/queuectl /usr/lib/systemd/system/queuectl* 2>/dev/null | grep .'
promise '... the queue and the settings are kept' box test -f /var/lib/queuectl/queuectl.db -a -f /etc/queuectl/queuectl.toml -a -f /etc/queuectl/runner.conf
promise 'the package can be installed again' install_deb "$new_deb"
promise '... the service is running' within 5 answers
promise '... it is enabled' same enabled "$(box systemctl is-enabled queuectl)"
promise '... it still has the output of an ended job' same kept "$(q alice logs "$done")"
as alice touch go
promise '... and it runs the interrupted job' within 10 in_state completed running

# --- units that an administrator enabled or disabled
box systemctl enable queuectl-web.socket >/dev/null 2>&1
box systemctl disable --now queuectl.service queuectl.socket >/dev/null 2>&1
promise 'an upgrade of a disabled service succeeds' install_deb "$new_deb"
promise '... the service stays disabled, and the enabled web page stays enabled' same 'disabled enabled' "$(box_sh 'systemctl is-enabled queuectl; systemctl is-enabled queuectl-web.socket' | xargs)"
box systemctl enable --now queuectl.socket queuectl.service >/dev/null 2>&1

# --- a removal that fails
q alice enqueue --id stays --command 'until [ -e go ]; do sleep 0.1; done' >/dev/null
box_sh 'cp -p /var/lib/dpkg/info/queuectl.prerm /root/prerm; echo exit 1 >>/var/lib/dpkg/info/queuectl.prerm'
promise 'a removal fails after it has stopped the service' refuses box dpkg -r queuectl
promise '... the service is started again' within 5 unit_is "$service" ActiveState active
promise '... and so are its sockets' same 'active active' "$(box systemctl is-active queuectl.socket queuectl-runner.socket | xargs)"
box systemctl disable --now queuectl.service queuectl.socket queuectl-runner.socket >/dev/null 2>&1
box dpkg -r queuectl >/dev/null 2>&1 || true
promise '... but disabled units are not started' same 'inactive disabled' "$(box_sh 'systemctl is-active queuectl; systemctl is-enabled queuectl' | xargs)"
box_sh 'cp -p /root/prerm /var/lib/dpkg/info/queuectl.prerm; dpkg --configure -a; systemctl enable --now queuectl.socket queuectl-runner.socket queuectl.service' >/dev/null 2>&1
promise '... and the interrupted job runs again' within 10 in_state completed stays

# --- a backup for another machine, which is this one after the purge
# page WORDS prints the first code block after these words in docs/upgrade.md.
page() { awk -v words="$1" 'index($0, words) {on = 1} on && /^```$/ {exit} block {print} on && /^```text$/ {block = 1}' "$project/docs/upgrade.md"; }
old_machine=$(page 'On the old machine, as root')
new_machine=$(page 'On the new machine, as root')
promise 'docs/upgrade.md has the commands for a move to another machine' same '3 6' "$(wc -l <<<"$old_machine") $(wc -l <<<"$new_machine")"
q root drain --wait >/dev/null
q alice enqueue --id moves --label team=x 'echo moved' >/dev/null
promise 'the commands for the old machine succeed' box_sh "set -e; cd /root; $old_machine"
promise '... and write a backup' box test -s /root/queue.db
box systemctl enable --now queuectl.socket queuectl.service >/dev/null 2>&1
within 5 answers >/dev/null
q root drain --off >/dev/null
within 5 in_state completed moves >/dev/null

# --- purge
q alice enqueue --command 'setsid sleep 4321 & until [ -e gone ]; do sleep 0.1; done' >/dev/null
sleep 0.5
promise 'the package can be purged while a job is running' box dpkg -P queuectl
promise '... no process is left' box_sh '! pgrep -af "[q]ueuectl|[s]leep 4321" | grep .'
box_sh 'systemctl daemon-reload; systemctl reset-failed'
promise '... no unit is left' same '' "$(box_sh 'systemctl list-unit-files --no-legend "queuectl*"; systemctl list-units --all --plain --no-legend "queuectl*" | grep -v "\.slice" || true')"
promise '... no cgroup is left' within 5 box_sh '! find /sys/fs/cgroup -name "*queuectl*" | grep .'
left_behind() {
	# Accounts and groups stay, as is usual for packages; this test created the users' home directories.
	box_sh 'find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/cache \) -prune -o -print | sort > /root/after
		comm -13 /root/before /root/after | grep -vE "^/root/|^/home/|^/var/(spool/)?mail/|^/etc/(group|gshadow|passwd|shadow|subuid|subgid)-?$|^/var/lib/(systemd|private)|^/etc/machine-id"'
}
promise '... no file is left' same '' "$(left_behind || true)"
promise '... nor in /run' same '' "$(box_sh 'ls -d /run/queuectl* 2>/dev/null || true')"
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
promise 'the package can be installed after a purge' install_deb "$new_deb"
promise '... and its queue is empty' same '[]' "$(within 5 answers >/dev/null; q root list --json | jq -c .)"

# --- the other machine
promise 'the commands for the new machine succeed' box_sh "set -e; cd /root; $new_machine"
promise 'the new machine has the output of an ended job' same kept "$(q alice logs "$done")"
promise '... and runs a job that was waiting' within 5 in_state completed moves
promise '... as the same user, with the same labels' same 'moved alice x' "$(q alice logs moves) $(job moves '"\(.user) \(.labels.team)"')"
promise '... and runs new jobs, too' same here "$(q alice run -- echo here)"
promise 'all files belong to the service' same '' "$(box find /var/lib/queuectl ! \( -user queuectl -group queuectl-service \))"

# --- purge if the queue has its own file system
box systemctl stop queuectl.socket queuectl.service
box_sh 'mkdir /root/aside; mv /var/lib/queuectl/* /root/aside; mount -t tmpfs none /var/lib/queuectl; chown queuectl: /var/lib/queuectl; mv /root/aside/* /var/lib/queuectl'
promise 'the package can be purged if the queue is a mount point' box dpkg -P queuectl
promise '... the mount point is emptied' same '' "$(box ls -A /var/lib/queuectl)"
promise '... all other files are removed' same '' "$(box_sh 'ls -d /etc/queuectl /var/lib/queuectl-runner /run/queuectl* 2>/dev/null || true')"
promise '... and systemd knows no unit' same not-found "$(unit "$service" LoadState)"
summary
