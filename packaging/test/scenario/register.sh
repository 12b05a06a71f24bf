#!/usr/bin/env bash
# A program without a package: `service install` makes it the system's service, by the
# same files, and takes that back.
. "$(dirname "$0")/../lib/all.sh"

programs=$cache/registered-$$
(cd "$project" && CGO_ENABLED=0 go build -trimpath -ldflags '-X github.com/queuectl/queuectl/internal/cli.Version=1.0.0' -o "$programs/" ./cmd/...)
box_up
box useradd --create-home --shell /bin/sh alice
for name in queuectl queuectld; do
	box_put "$programs/$name" /home/alice/$name 755
	box_put "$programs/$name" /usr/local/bin/$name 755
done
rm -r "$programs"
known() { box find /etc ! -path '/etc/queuectl*' -name '*queuectl*'; }

promise '... service status asks the socket' ends 3 'not running' q root --socket /run/queuectl/queuectl.sock service status
promise 'an ordinary user is told what root would type' ends 5 'sudo queuectl service install' q alice service install
promise 'a program in a home folder is refused, with what to do' ends 5 'install /home/alice/queuectl /home/alice/queuectld /usr/local/bin' box /home/alice/queuectl service install
promise '... and nothing was written' same '' "$(known)"
promise 'service install' q root service install
promise 'the service runs' unit_is "$service" ActiveState active
promise 'it is enabled, and its sockets are' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
# The file of a unit is the packaged one, with the other paths of the programs.
files_are_the_packages() {
	local name
	for name in queuectl.service queuectl.socket queuectl-runner.socket queuectl-runner@.service; do
		sed 's#/usr/libexec/queuectl/queuectld#/usr/local/bin/queuectld#; s#/usr/bin/queuectl#/usr/local/bin/queuectl#' "$project/packaging/$name" | diff - "$box_dir/root/etc/systemd/system/$name" || return 1
	done
	diff "$project/packaging/runner.conf" "$box_dir/root/etc/queuectl/runner.conf"
}
promise 'the units are those of the packages' files_are_the_packages
promise 'service status' says '^running, pid [0-9]+, version 1\.0\.0$' q root service status
box usermod -aG queuectl alice
promise 'a job of an ordinary user runs as that user' same alice "$(q alice run -- id -un)"
pid=$(main_pid)
promise 'service install once more' q root service install
promise '... changes nothing' same "$pid" "$(main_pid)"
q alice enqueue --id long --max-retries 0 -- sh -c 'until [ -e /tmp/go ]; do sleep 0.1; done; exit 7' >/dev/null
long_runs() { q alice show long --json | jq -e '.state == "processing" and .pid != null'; }
within 5 long_runs >/dev/null
job_pid=$(q alice show long --json | jq .pid)
promise 'an ordinary user is not let restart it' ends 5 'sudo queuectl service restart' q alice service restart
promise 'service restart' q root service restart
promise '... is another process' within 5 replaced "$pid"
promise '... and the job runs on' same "$job_pid" "$(q alice show long --json | jq .pid)"
pid=$(main_pid)
box sed -i 's/^Description=.*/Description=changed/' /etc/systemd/system/queuectl.socket /etc/systemd/system/queuectl.service
box_sh 'echo "# by hand" >>/etc/queuectl/runner.conf'
promise 'service install where the units are others'"'"'' q root service install
promise '... brings them up to date' within 5 replaced "$pid"
promise '... keeps the settings' box grep -qx '# by hand' /etc/queuectl/runner.conf
box sed -i '/by hand/d' /etc/queuectl/runner.conf
promise '... and is the packages'"'"' again' files_are_the_packages
promise '... and the job runs on' same "$job_pid" "$(q alice show long --json | jq .pid)"
box touch /tmp/go
promise '... to its own end' ends 7 '' q alice wait long
promise 'service stop' q root service stop
promise '... has stopped it' unit_is "$service" ActiveState inactive
promise '... and its runners' within 5 no_members "$runners"
promise 'service status says so, and starts nothing' ends 3 'systemctl start queuectl' q root service status
promise '... indeed' unit_is "$service" ActiveState inactive
promise 'service stop once more' q root service stop
promise 'service start' q root service start
promise '... it answers' answers
promise 'service stop --keep-jobs is refused: it would be started again' ends 2 'service restart' q root service stop --keep-jobs
q root config set stop_timeout 1s >/dev/null
q alice enqueue --id ends -- sleep 100 >/dev/null
promise 'service uninstall' q root service uninstall
promise '... leaves nothing that runs' same '' "$(box pgrep -af queuectl)"
promise '... nor a file of the registration' same '' "$(known)"
promise '... nor a unit' same '' "$(box systemctl list-units --all --no-legend 'queuectl*')"
promise '... nor a socket' refuses box sh -c 'ss -xl | grep queuectl'
promise '... but the queue' box test -f /var/lib/queuectl/queuectl.db
promise 'service uninstall once more' q root service uninstall
promise 'installed again it has the jobs that were there' q root service install
promise '... with the one that was interrupted' within 5 q alice show ends

# --- a package comes later
package new
q alice enqueue --id over --max-retries 0 -- sh -c 'until [ -e /tmp/over ]; do sleep 0.1; done; exit 8' >/dev/null
over_runs() { q alice show over --json | jq -e '.state == "processing" and .pid != null'; }
within 5 over_runs >/dev/null
job_pid=$(q alice show over --json | jq .pid)
promise 'a package that comes later installs' install_deb "$new_deb"
runs_from() { answers && same "$1" "$(box readlink "/proc/$(main_pid)/exe")"; }
promise '... and what was registered runs on' within 5 runs_from /usr/local/bin/queuectld
promise 'service install says what to do' ends 5 'queuectl service uninstall' q root service install
promise 'service uninstall gives way to it' q root service uninstall
promise '... its service runs' within 5 runs_from /usr/libexec/queuectl/queuectld
promise '... enabled, and its sockets' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
promise '... by links to its units alone' same '/usr/lib/systemd/system/queuectl.service' \
	"$(box_sh 'readlink -m $(find /etc ! -path "/etc/queuectl*" -name "queuectl.service")')"
promise '... no file of the registration is left' same '' "$(box find /etc ! -path '/etc/queuectl*' ! -path '/etc/systemd/system/*.wants/*' -name '*queuectl*')"
promise '... and the job runs on' same "$job_pid" "$(q alice show over --json | jq .pid)"
box touch /tmp/over
promise '... to its own end' ends 8 '' q alice wait over
promise 'service uninstall once more is refused: it is the package'"'"'s' ends 5 'remove the package' q root service uninstall
summary
