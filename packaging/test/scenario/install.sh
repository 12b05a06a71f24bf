#!/usr/bin/env bash
# The package is installed and the service runs: access rights, the accounts of jobs, the
# units and the messages in the journal.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
promise 'the package installs' install_deb "$new_deb"
people

# --- it runs
promise 'the service is active' within 5 unit_is "$service" ActiveState active
promise 'the service and its sockets are enabled' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
promise 'the socket is root:queuectl 0660, in a directory of root' same 'root:queuectl 660 root:root 755' \
	"$(box stat -c '%U:%G %a' /run/queuectl/queuectl.sock /run/queuectl | xargs)"
promise 'only the service can use the socket for runners' same 'queuectl 600' \
	"$(box stat -c '%U %a' /run/queuectl-runner/spawn.sock)"
promise 'only the service can use the state directory' same 'queuectl:queuectl-service 700' \
	"$(box stat -c '%U:%G %a' /var/lib/queuectl)"
promise 'the runner directory belongs to root' same 'root:queuectl-service 2751' \
	"$(box stat -c '%U:%G %a' /var/lib/queuectl-runner)"
promise 'the database has mode 0600' same 600 "$(box stat -c %a /var/lib/queuectl/queuectl.db)"
promise 'the service runs as queuectl' same 'queuectl queuectl-service' "$(box ps -o user=,group= -p "$(main_pid)" | xargs)"
promise 'the service has no capability and can get none' same 'CapBnd: 0000000000000000 NoNewPrivs: 1' \
	"$(box grep -E '^(CapBnd|NoNewPrivs):' "/proc/$(main_pid)/status" | xargs)"

# --- the first job
first_job() {
	local began=$EPOCHREALTIME seen
	seen=$(q alice run -- echo hello)
	same hello "$seen"
	[ $(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000)) -lt 1000 ]
}
promise 'the first job of an ordinary user in the group takes less than a second' first_job
promise 'www-data in the group can run a job, too' same www-data "$(q www-data run -- id -un)"
promise 'run returns the exit code of its job' ends 7 '' q bob run --max-retries 0 'exit 7'
promise 'a user outside the group is rejected, and the message says what to do' ends 5 'group .?queuectl|usermod|adduser|gpasswd' q eve enqueue 'id'
promise '... also for reading' ends 5 'queuectl' q eve list
promise 'root'"'"'s job is rejected, and the message names allow_root_jobs' ends 5 'allow_root_jobs.*' q root enqueue id
promise '... and the file' says '/etc/queuectl/runner.conf' q root enqueue id
promise '... and --user' says '--user' q root enqueue id
promise 'root can enqueue a job for an ordinary user' same alice "$(q root run --user alice -- id -un)"
allow_root() {
	box sed -i "s/^allow_root_jobs *=.*/allow_root_jobs = $1/" /etc/queuectl/runner.conf
	box systemctl reload queuectl
}
allow_root true
root_runs() { same 'root 0' "$(q root run -- sh -c 'echo $(id -un) $(id -g)')"; }
promise 'if the policy allows it, root'"'"'s jobs run as root' within 5 root_runs
allow_root false
promise '... and if the policy forbids it again, they are rejected' within 5 ends 5 allow_root_jobs q root enqueue id

# --- identity and environment of a job, seen from inside
inside() { q "$1" run -- sh -c "$2"; }
box usermod -aG games alice
promise 'a job has the uid and gid of the user who enqueued it' same "$(as alice sh -c 'echo $(id -u) $(id -g)')" "$(inside alice 'echo $(id -u) $(id -g)')"
promise '... as real, effective, saved and file system uid' same 'alice alice alice alice' "$(inside alice 'ps -o ruser=,euser=,suser=,fuser= -p $$' | xargs)"
promise '... and all supplementary groups' same "$(as alice sh -c 'id -G | tr " " "\n" | sort -n | xargs')" "$(inside alice 'id -G | tr " " "\n" | sort -n | xargs')"
promise '... and no capability' same 'CapPrm: 0000000000000000 CapEff: 0000000000000000' "$(inside alice 'grep -E "^Cap(Prm|Eff)" /proc/self/status' | xargs)"
promise '... and starts in the user'"'"'s home directory' same '/home/alice /home/alice' "$(inside alice 'echo $HOME $(pwd)')"
promise '... also with --no-cwd' same /home/alice "$(as_sh alice 'cd / && queuectl run --no-cwd -- pwd')"
promise '... or in the caller'"'"'s directory' same /usr/share "$(as_sh alice 'cd /usr/share && queuectl run -- pwd')"
promise '... with the caller'"'"'s umask' same '0027 0002' "$(as_sh alice 'umask 027; queuectl run -- sh -c umask; umask 002; queuectl run -- sh -c umask' | xargs)"
promise '... with only the file descriptors 0, 1 and 2' same '0 1 2' "$(inside alice 'ls /proc/$$/fd' | xargs)"
promise '... with default signal handling and no blocked signals' same 'SigBlk: 0000000000000000 SigIgn: 0000000000000000' "$(q alice run -- grep -E '^Sig(Blk|Ign)' /proc/self/status | xargs)"
built_environment() {
	local names
	names=$(as alice env SECRET_OF_THE_CALLER=1 queuectl run --env MINE=2 -- env | sed 's/=.*//' | sort | xargs)
	grep -vE 'SECRET|NOTIFY_SOCKET|LISTEN_|CREDENTIALS|WATCHDOG|INVOCATION|JOURNAL_STREAM|STATE_DIRECTORY|SYSTEMD' <<<"$names" &&
		same '' "$(tr ' ' '\n' <<<"$names" | grep -vE '^(HOME|LANG|LC_[A-Z]*|LOGNAME|MINE|PATH|PWD|OLDPWD|SHLVL|_|QUEUECTL_(JOB_ID|ATTEMPT|QUEUE|WORKER|SOCKET|COOKIE|TMPDIR|RESULT|PROGRESS|DEPS)|SHELL|TZ|USER)$')" &&
		for name in HOME LANG LOGNAME MINE PATH QUEUECTL_JOB_ID QUEUECTL_SOCKET SHELL USER; do
			grep -qw "$name" <<<"$names" || { echo "no $name in: $names"; return 1; }
		done
}
promise '... with a new environment, without variables of the service or the caller' built_environment
promise '... with USER, LOGNAME and SHELL of its account' same 'alice alice /bin/sh' "$(inside alice 'echo $USER $LOGNAME $SHELL')"
promise '... with a limit of 1024 file descriptors' same 1024 "$(inside alice 'ulimit -n')"
promise '... in the control group of the runner'"'"'s unit, not of the service'"'"'s' says 'queuectl-runner' inside alice 'cat /proc/self/cgroup'
promise 'the queue stores the job'"'"'s user' same alice "$(job "$(q alice enqueue -q true)" .user)"

# --- systemd and the journal
promise 'the status line of the unit says something useful' says 'jobs?|workers?|pending|idle' unit "$service" StatusText
promise 'the service'"'"'s log messages have their own fields in the journal' box_sh "journalctl --sync; journalctl -u queuectl -o json --no-pager | jq -e -s 'map(keys[]) | map(select(test(\"^(QUEUECTL_|JOB)\"))) | unique | length > 0'"
promise '... and the right priority' box_sh "journalctl -u queuectl -p info --no-pager -o json | jq -e 'select(.PRIORITY == \"6\") | .MESSAGE' | head -n 1 | grep ."
promise 'the log messages of a runner are in the journal, too' box_sh "journalctl -u 'queuectl-runner@*' --no-pager -o cat | grep ."

settings() { box_sh "sed -i /^workers/d /etc/queuectl/queuectl.toml; sed -i '1i workers = $1' /etc/queuectl/queuectl.toml"; }
pid=$(main_pid)
settings 5
promise 'reload succeeds' box systemctl reload queuectl
promise '... and applies the changed setting' same 5 "$(q root config get workers --json | jq -r '.value // .')"
promise '... in the same process' same "$pid" "$(main_pid)"
promise '... and the unit is active' unit_is "$service" ActiveState active
settings '"a great many"'
promise 'a reload with bad settings fails' refuses box systemctl reload queuectl
promise '... and the journal says what is wrong, with file and line' within 3 says 'queuectl\.toml:?.*1.*workers|workers.*queuectl\.toml' journal "$service" -n 20
promise '... and the service keeps its settings and its process' same "5 active $pid" "$(q root config get workers --json | jq -r '.value // .') $(unit "$service" ActiveState) $(main_pid)"
settings 5
promise '... and a reload with valid settings succeeds again' box systemctl reload queuectl
promise 'systemd-analyze verify finds no problem' same '' \
	"$(box_sh 'systemd-analyze verify --man=no queuectl.service queuectl.socket queuectl-web.socket queuectl-runner.socket queuectl-runner@1.service 2>&1')"
promise 'systemd-analyze security rates the service below 1' box systemd-analyze security --no-pager --threshold=9 queuectl.service
promise 'systemd-analyze security prints its rating' says 'OK|SAFE' box_sh 'systemd-analyze security --no-pager queuectl.service | tail -n 1'
promise 'the file system is read-only for the service' says '^ro,' box_sh "awk '\$5 == \"/\" {print \$6}' /proc/$(main_pid)/mountinfo | tail -n 1"
promise '... except the service'"'"'s own directory' says '^rw,' box_sh "awk '\$5 == \"/var/lib/queuectl\" {print \$6}' /proc/$(main_pid)/mountinfo"

# --- the page: the service has no network, systemd opens its socket
# http METHOD PATH HOST COOKIE BODY [USER] sends a request to the page, from within the box.
http() {
	box setpriv --reuid="${6:-eve}" --clear-groups --regid=nogroup bash -c '
		exec 3<>/dev/tcp/127.0.0.1/7070 || exit 7
		printf "%s %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s" "$1" "$2" "$3" "$4" "${#5}" "$5" >&3
		timeout 10 cat <&3' http "$1" "$2" "$3" "$4" "$5"
}
page_is_there() { says '401 Unauthorized' http GET / localhost '' ''; }
promise 'the web page is off' same 'disabled inactive' "$(box_sh 'systemctl is-enabled queuectl-web.socket; systemctl is-active queuectl-web.socket' | xargs)"
promise '... and its port is closed' refuses http GET / localhost '' ''
promise '... and web start prints the command that opens it' ends 5 'systemctl enable queuectl-web.socket' q root web start
q alice enqueue --id outlives --command 'until [ -e page-end ]; do sleep 0.1; done' >/dev/null
promise 'that command succeeds' box_sh 'systemctl enable queuectl-web.socket && systemctl restart queuectl.service'
promise '... and the web page answers' within 5 page_is_there
was=$(job outlives '"\(.state) \(.pid)"')
promise '... although the service still has no network access' same lo "$(box_sh "sed -n 's/^ *\([a-z0-9]*\):.*/\1/p' /proc/$(main_pid)/net/dev")"
enters() {
	local link host cookie
	link=$(q alice web open)
	host=${link#http://}
	host=${host%%/*}
	cookie=$(http POST /open "$host" '' "link=${link##*link=}" | sed -n 's/^Set-Cookie: \([^;]*\).*/\1/p')
	http GET /api/whoami "$host" "$cookie" '' | grep '"alice"'
}
promise '... and a link signs a browser in as the user who requested the link' enters
promise '... and web stop prints the command that closes the page' ends 5 'systemctl disable --now queuectl-web.socket' q root web stop
box kill -KILL "$(main_pid)"
promise 'after the service was killed, the page answers again' within 10 page_is_there
promise '... and the running job continues' same "$was" "$(job outlives '"\(.state) \(.pid)"')"
as alice touch page-end
promise '... until it ends' within 10 in_state completed outlives
box systemctl stop queuectl.socket queuectl.service
promise 'a browser does not start a stopped service' refuses http GET / localhost '' ''
promise '... and the service stays stopped' same inactive "$(box systemctl is-active queuectl.service)"
box systemctl start queuectl.socket queuectl.service
promise 'after the service was started, the page answers again' within 5 page_is_there
box_sh 'systemctl disable --now queuectl-web.socket && systemctl restart queuectl.service' 2>/dev/null
promise 'after the page was disabled, its port is closed' refuses http GET / localhost '' ''
promise '... and web open says how to start the page' ends 5 'web start' q alice web open

# --- traces: with the lines from docs/tracing.md, the service has network access
cat >"$box_dir/collector.pl" <<'END'
use IO::Socket::INET;
$SIG{PIPE} = 'IGNORE';
my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1:4318', Listen => 8, ReuseAddr => 1) or die $!;
while (my $c = $l->accept) {
	my ($head, $body) = ('', '');
	while (defined(my $line = <$c>)) { $head .= $line; last if $line eq "\r\n" }
	read $c, $body, $1 if $head =~ /^content-length: (\d+)/mi;
	open my $f, '>>', '/run/spans';
	print $f $head, $body;
	close $f;
	print $c "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	close $c;
}
END
box_put "$box_dir/collector.pl" /usr/lib/collector.pl
box systemd-run --quiet --unit=collector perl /usr/lib/collector.pl
promise 'a trace collector is listening' within 5 box bash -c 'exec 3<>/dev/tcp/127.0.0.1/4318'
q root config set traces.endpoint http://127.0.0.1:4318 >/dev/null
trace=4bf92f3577b34da6a3ce929d0e0e4736
traced() { as alice env TRACEPARENT="00-$trace-00f067aa0ba902b7-01" queuectl run -- sh -c 'echo $TRACEPARENT' | grep -v 00f067aa0ba902b7; }
promise 'a job gets the ID of its trace, even if no collector gets the trace' says "^00-$trace-" traced
promise '... and the packaged service cannot send it, so the journal says what to do' within 20 says 'docs/tracing.md' journal "$service" -n 50
mkdir -p "$box_dir/root/etc/systemd/system/queuectl.service.d"
sed -n '/^# systemctl edit queuectl.service$/,/^```$/p' "$project/docs/tracing.md" | sed '1d;$d' >"$box_dir/root/etc/systemd/system/queuectl.service.d/network.conf"
promise 'the lines in docs/tracing.md give the service network access' box_sh 'grep -q PrivateNetwork=no /etc/systemd/system/queuectl.service.d/network.conf && systemctl daemon-reload && systemctl restart queuectl.service'
within 5 answers >/dev/null
traced >/dev/null
spans() { box test -s /run/spans && box perl -0777 -ne 'exit !(m{^POST /v1/traces}m && index($_, pack("H*", "'$trace'")) >= 0)' /run/spans; }
promise '... and the spans arrive, in the trace of the client' within 10 spans
box_sh 'systemctl stop collector; rm -r /etc/systemd/system/queuectl.service.d /run/spans; systemctl daemon-reload; systemctl restart queuectl.service'
q root config unset traces.endpoint >/dev/null
promise 'after all this, no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"

summary
