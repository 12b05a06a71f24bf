#!/usr/bin/env bash
# A program without a package: `service install` installs the system service with the same
# units as the package, and `service uninstall` removes it.
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

promise 'service status says that no service is running' ends 3 'not running' q root --socket /run/queuectl/queuectl.sock service status
promise 'service install of an ordinary user prints the command for root' ends 5 'sudo queuectl service install' q alice service install
promise 'a program in a home directory is rejected, and the message says what to do' ends 5 'install /home/alice/queuectl /home/alice/queuectld /usr/local/bin' box /home/alice/queuectl service install
promise '... and no file was written' same '' "$(known)"
promise 'service install succeeds' q root service install
promise 'the service is running' unit_is "$service" ActiveState active
promise 'the service and its sockets are enabled' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
# Each unit is the packaged file, with other paths of the programs.
files_are_the_packages() {
	local name
	for name in queuectl.service queuectl.socket queuectl-runner.socket queuectl-runner@.service; do
		sed 's#/usr/libexec/queuectl/queuectld#/usr/local/bin/queuectld#; s#/usr/bin/queuectl#/usr/local/bin/queuectl#' "$project/packaging/$name" | diff - "$box_dir/root/etc/systemd/system/$name" || return 1
	done
	diff "$project/packaging/runner.conf" "$box_dir/root/etc/queuectl/runner.conf"
}
promise 'the units are the same as in the packages' files_are_the_packages
promise 'service status shows pid and version' says '^running, pid [0-9]+, version 1\.0\.0$' q root service status
box usermod -aG queuectl alice
promise 'a job of an ordinary user runs as that user' same alice "$(q alice run -- id -un)"
pid=$(main_pid)
promise 'a second service install succeeds' q root service install
promise '... changes nothing' same "$pid" "$(main_pid)"
q alice enqueue --id long --max-retries 0 -- sh -c 'until [ -e /tmp/go ]; do sleep 0.1; done; exit 7' >/dev/null
long_runs() { q alice show long --json | jq -e '.state == "processing" and .pid != null'; }
within 5 long_runs >/dev/null
job_pid=$(q alice show long --json | jq .pid)
promise 'an ordinary user cannot restart the service' ends 5 'sudo queuectl service restart' q alice service restart
promise 'service restart succeeds' q root service restart
promise '... the service is a new process' within 5 replaced "$pid"
promise '... and the running job continues' same "$job_pid" "$(q alice show long --json | jq .pid)"
pid=$(main_pid)
box sed -i 's/^Description=.*/Description=changed/' /etc/systemd/system/queuectl.socket /etc/systemd/system/queuectl.service
box_sh 'echo "# by hand" >>/etc/queuectl/runner.conf'
promise 'service install succeeds although the units were changed' q root service install
promise '... updates the units and restarts the service' within 5 replaced "$pid"
promise '... keeps changes of runner.conf' box grep -qx '# by hand' /etc/queuectl/runner.conf
box sed -i '/by hand/d' /etc/queuectl/runner.conf
promise '... and the units are the same as in the packages again' files_are_the_packages
promise '... and the running job continues' same "$job_pid" "$(q alice show long --json | jq .pid)"
box touch /tmp/go
promise '... until it ends' ends 7 '' q alice wait long
promise 'service stop succeeds' q root service stop
promise '... the service is stopped' unit_is "$service" ActiveState inactive
promise '... and so are its runners' within 5 no_members "$runners"
promise 'service status says that the service is stopped' ends 3 'systemctl start queuectl' q root service status
promise '... and does not start it' unit_is "$service" ActiveState inactive
promise 'a second service stop succeeds' q root service stop
promise 'service start succeeds' q root service start
promise '... and the service answers' answers
promise 'service stop --keep-jobs is rejected, because systemd would start the service again' ends 2 'service restart' q root service stop --keep-jobs
q root config set stop_timeout 1s >/dev/null
q alice enqueue --id ends -- sleep 100 >/dev/null
promise 'service uninstall succeeds' q root service uninstall
promise '... no process is left' same '' "$(box pgrep -af queuectl)"
promise '... no file of the registration' same '' "$(known)"
promise '... no unit' same '' "$(box systemctl list-units --all --no-legend 'queuectl*')"
promise '... and no socket' refuses box sh -c 'ss -xl | grep queuectl'
promise '... but the queue is kept' box test -f /var/lib/queuectl/queuectl.db
promise 'a second service uninstall succeeds' q root service uninstall
promise 'after a new install' q root service install
promise '... the interrupted job is still in the queue' within 5 q alice show ends

# --- a package comes later
package new
q alice enqueue --id over --max-retries 0 -- sh -c 'until [ -e /tmp/over ]; do sleep 0.1; done; exit 8' >/dev/null
over_runs() { q alice show over --json | jq -e '.state == "processing" and .pid != null'; }
within 5 over_runs >/dev/null
job_pid=$(q alice show over --json | jq .pid)
promise 'a package can be installed over the registration' install_deb "$new_deb"
runs_from() { answers && same "$1" "$(box readlink "/proc/$(main_pid)/exe")"; }
promise '... and the registered service keeps running' within 5 runs_from /usr/local/bin/queuectld
promise 'service install says how to switch to the package' ends 5 'queuectl service uninstall' q root service install
promise 'service uninstall succeeds' q root service uninstall
promise '... the packaged service is running' within 5 runs_from /usr/libexec/queuectl/queuectld
promise '... it and its sockets are enabled' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
promise '... only by links to the packaged units' same '/usr/lib/systemd/system/queuectl.service' \
	"$(box_sh 'readlink -m $(find /etc ! -path "/etc/queuectl*" -name "queuectl.service")')"
promise '... no file of the registration is left' same '' "$(box find /etc ! -path '/etc/queuectl*' ! -path '/etc/systemd/system/*.wants/*' -name '*queuectl*')"
promise '... and the running job continues' same "$job_pid" "$(q alice show over --json | jq .pid)"
box touch /tmp/over
promise '... until it ends' ends 8 '' q alice wait over
promise 'a second service uninstall is rejected, because the units belong to the package' ends 5 'remove the package' q root service uninstall
summary
