#!/usr/bin/env bash
# The .rpm, with the real rpm, on a booted systemd. The root is Debian's, and its rpm has no
# database of installed packages, hence --nodeps. Files, scripts and settings are tested as
# for the .deb.
. "$(dirname "$0")/../lib/all.sh"

package new old
box_up
box_put "$old_rpm" /root/old.rpm
box_put "$new_rpm" /root/new.rpm
box_sh 'rpm --initdb 2>/dev/null || true'
# Red Hat enables units by a preset file; Debian has no such file.
box_sh 'mkdir -p /etc/systemd/system-preset; printf "enable queuectl.service\nenable queuectl.socket\nenable queuectl-runner.socket\n" > /etc/systemd/system-preset/10-test.preset'

promise 'the package installs' box rpm -i --nodeps /root/old.rpm
promise 'the account exists' box getent passwd queuectl
promise '... and so do its groups' box getent group queuectl queuectl-admin queuectl-service
promise 'a preset has enabled the units' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
promise 'the installation did not start the service' unit_is "$service" ActiveState inactive
promise 'the service can be started' box systemctl start queuectl.socket queuectl
people
promise 'a job runs' same alice "$(q alice run -- id -un)"
promise 'rpm -V finds no changed file' box rpm -V --nodeps queuectl
promise 'manual pages and completions are installed' box_sh 'ls /usr/share/man/man1/queuectl.1* /usr/share/bash-completion/completions/queuectl'
q alice enqueue --id long --command 'until [ -e go ]; do sleep 0.1; done; echo whole' >/dev/null
within 5 in_state processing long >/dev/null
before=$(main_pid)
pid=$(job long .pid)
box_sh 'echo "# mine" >> /etc/queuectl/queuectl.toml'
promise 'the package can be upgraded while a job is running' box rpm -U --nodeps /root/new.rpm
promise '... the service is a new process' within 5 replaced "$before"
promise '... of the new version' says "$new_version" box queuectl status --json
promise '... and the job is still the same process' same "$pid" "$(job long .pid)"
as alice touch go
promise '... until it ends' within 10 in_state completed long
promise '... with its output' same whole "$(q alice logs long)"
promise '... changed settings are kept' box grep -q '^# mine' /etc/queuectl/queuectl.toml
promise '... the units are still enabled' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
before=$(main_pid)
promise 'the package can be downgraded' box rpm -U --oldpackage --nodeps /root/old.rpm
promise '... the service is a new process' within 5 replaced "$before"
promise 'the package can be erased' box rpm -e queuectl
promise '... no process is left' box_sh '! pgrep -af "[q]ueuectl" | grep .'
promise '... no program and no unit file is left' box_sh '! ls /usr/bin/queuectl /usr/libexec/queuectl /usr/lib/systemd/system/queuectl* 2>/dev/null | grep .'
promise '... changed settings are saved' box test -f /etc/queuectl/queuectl.toml.rpmsave
promise '... the queue is kept' box test -f /var/lib/queuectl/queuectl.db
promise '... no unit is enabled or failed' same '' "$(box_sh 'systemctl list-units --failed --no-legend; find /etc/systemd/system -name "queuectl*"')"
summary
