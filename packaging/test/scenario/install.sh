#!/usr/bin/env bash
# The package is installed and runs: who may use it, as whom jobs run, what systemd
# and the journal know of it.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
promise 'the package installs' install_deb "$new_deb"
people

# --- it runs
promise 'the service is active' within 5 unit_is "$service" ActiveState active
promise 'it is enabled, and its sockets are' same 'enabled enabled enabled' \
	"$(box systemctl is-enabled queuectl.service queuectl.socket queuectl-runner.socket | xargs)"
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
promise 'the socket is root:queuectl 0660 in a folder of root' same 'root:queuectl 660 root:root 755' \
	"$(box stat -c '%U:%G %a' /run/queuectl/queuectl.sock /run/queuectl | xargs)"
promise 'the socket for runners is for the service alone' same 'queuectl 600' \
	"$(box stat -c '%U %a' /run/queuectl-runner/spawn.sock)"
promise 'the state folder is the service'"'"'s alone' same 'queuectl:queuectl-service 700' \
	"$(box stat -c '%U:%G %a' /var/lib/queuectl)"
promise 'the runners'"'"' folder is root'"'"'s' same 'root:queuectl-service 2751' \
	"$(box stat -c '%U:%G %a' /var/lib/queuectl-runner)"
promise 'the database is 0600' same 600 "$(box stat -c %a /var/lib/queuectl/queuectl.db)"
promise 'the service runs as queuectl' same 'queuectl queuectl-service' "$(box ps -o user=,group= -p "$(main_pid)" | xargs)"
promise 'it has no capability and can get none' same 'CapBnd: 0000000000000000 NoNewPrivs: 1' \
	"$(box grep -E '^(CapBnd|NoNewPrivs):' "/proc/$(main_pid)/status" | xargs)"

# --- the first job
first_job() {
	local began=$EPOCHREALTIME seen
	seen=$(q alice run -- echo hello)
	same hello "$seen"
	[ $(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000)) -lt 1000 ]
}
promise 'the first job of an ordinary user, in the group, takes less than a second' first_job
promise 'www-data in the group can, too' same www-data "$(q www-data run -- id -un)"
promise 'a job passes its exit code on' ends 7 '' q bob run --max-retries 0 'exit 7'
promise 'a user outside the group is refused, and told what helps' ends 5 'group .?queuectl|usermod|adduser|gpasswd' q eve enqueue 'id'
promise '... for reading, too' ends 5 'queuectl' q eve list
promise 'root is told of allow_root_jobs, its file and --user' ends 5 'allow_root_jobs.*' q root enqueue id
promise '... the file' says '/etc/queuectl/runner.conf' q root enqueue id
promise '... --user' says '--user' q root enqueue id
promise 'root may hand in a job of an ordinary user' same alice "$(q root run --user alice -- id -un)"
allow_root() {
	box sed -i "s/^allow_root_jobs *=.*/allow_root_jobs = $1/" /etc/queuectl/runner.conf
	box systemctl reload queuectl
}
allow_root true
root_runs() { same 'root 0' "$(q root run -- sh -c 'echo $(id -un) $(id -g)')"; }
promise 'once the policy says so root'"'"'s jobs run, as root' within 5 root_runs
allow_root false
promise '... and then no more' within 5 ends 5 allow_root_jobs q root enqueue id

# --- who a job is, seen from inside
inside() { q "$1" run -- sh -c "$2"; }
box usermod -aG games alice
promise 'a job has its submitter'"'"'s uid and gid' same "$(as alice sh -c 'echo $(id -u) $(id -g)')" "$(inside alice 'echo $(id -u) $(id -g)')"
promise '... all four of them' same 'alice alice alice alice' "$(inside alice 'ps -o ruser=,euser=,suser=,fuser= -p $$' | xargs)"
promise '... and all supplementary groups' same "$(as alice sh -c 'id -G | tr " " "\n" | sort -n | xargs')" "$(inside alice 'id -G | tr " " "\n" | sort -n | xargs')"
promise '... no capability' same 'CapPrm: 0000000000000000 CapEff: 0000000000000000' "$(inside alice 'grep -E "^Cap(Prm|Eff)" /proc/self/status' | xargs)"
promise '... its home' same '/home/alice /home/alice' "$(inside alice 'echo $HOME $(pwd)')"
promise '... its home without a cwd' same /home/alice "$(as_sh alice 'cd / && queuectl run --no-cwd -- pwd')"
promise '... the caller'"'"'s folder' same /usr/share "$(as_sh alice 'cd /usr/share && queuectl run -- pwd')"
promise '... the caller'"'"'s umask' same '0027 0002' "$(as_sh alice 'umask 027; queuectl run -- sh -c umask; umask 002; queuectl run -- sh -c umask' | xargs)"
promise '... descriptors 0, 1 and 2 alone' same '0 1 2' "$(inside alice 'ls /proc/$$/fd' | xargs)"
promise '... default signals and none blocked' same 'SigBlk: 0000000000000000 SigIgn: 0000000000000000' "$(q alice run -- grep -E '^Sig(Blk|Ign)' /proc/self/status | xargs)"
built_environment() {
	local names
	names=$(as alice env SECRET_OF_THE_CALLER=1 queuectl run --env MINE=2 -- env | sed 's/=.*//' | sort | xargs)
	grep -vE 'SECRET|NOTIFY_SOCKET|LISTEN_|CREDENTIALS|WATCHDOG|INVOCATION|JOURNAL_STREAM|STATE_DIRECTORY|SYSTEMD' <<<"$names" &&
		same '' "$(tr ' ' '\n' <<<"$names" | grep -vE '^(HOME|LANG|LC_[A-Z]*|LOGNAME|MINE|PATH|PWD|OLDPWD|SHLVL|_|QUEUECTL_(JOB_ID|ATTEMPT|QUEUE|WORKER|SOCKET|COOKIE|TMPDIR|RESULT|PROGRESS|DEPS)|SHELL|TZ|USER)$')" &&
		for name in HOME LANG LOGNAME MINE PATH QUEUECTL_JOB_ID QUEUECTL_SOCKET SHELL USER; do
			grep -qw "$name" <<<"$names" || { echo "no $name in: $names"; return 1; }
		done
}
promise '... a built environment, nothing of the service'"'"'s or the caller'"'"'s' built_environment
promise '... USER, LOGNAME and SHELL of its account' same 'alice alice /bin/sh' "$(inside alice 'echo $USER $LOGNAME $SHELL')"
promise '... a limit of 1024 descriptors' same 1024 "$(inside alice 'ulimit -n')"
promise '... a place in the runner'"'"'s unit, not in the service'"'"'s' says 'queuectl-runner' inside alice 'cat /proc/self/cgroup'
promise 'the queue knows whose it is' same alice "$(job "$(q alice enqueue -q true)" .user)"

# --- systemd and the journal
promise 'the status line of the unit says something useful' says 'jobs?|workers?|pending|idle' unit "$service" StatusText
promise 'messages have fields of their own in the journal' box_sh "journalctl --sync; journalctl -u queuectl -o json --no-pager | jq -e -s 'map(keys[]) | map(select(test(\"^(QUEUECTL_|JOB)\"))) | unique | length > 0'"
promise '... with their priority' box_sh "journalctl -u queuectl -p info --no-pager -o json | jq -e 'select(.PRIORITY == \"6\") | .MESSAGE' | head -n 1 | grep ."
promise 'what a runner says is in the journal, too' box_sh "journalctl -u 'queuectl-runner@*' --no-pager -o cat | grep ."

settings() { box_sh "sed -i /^workers/d /etc/queuectl/queuectl.toml; sed -i '1i workers = $1' /etc/queuectl/queuectl.toml"; }
pid=$(main_pid)
settings 5
promise 'reload reads the settings anew' box systemctl reload queuectl
promise '... which hold' same 5 "$(q root config get workers --json | jq -r '.value // .')"
promise '... in the same process' same "$pid" "$(main_pid)"
promise '... and the unit is active' unit_is "$service" ActiveState active
settings '"a great many"'
promise 'a reload with bad settings fails' refuses box systemctl reload queuectl
promise '... says what is wrong in the journal, with file and line' within 3 says 'queuectl\.toml:?.*1.*workers|workers.*queuectl\.toml' journal "$service" -n 20
promise '... leaves the service as it was' same "5 active $pid" "$(q root config get workers --json | jq -r '.value // .') $(unit "$service" ActiveState) $(main_pid)"
settings 5
promise '... and a good one works again' box systemctl reload queuectl
promise 'systemd-analyze verify has nothing to say' same '' \
	"$(box_sh 'systemd-analyze verify --man=no queuectl.service queuectl.socket queuectl-web.socket queuectl-runner.socket queuectl-runner@1.service 2>&1')"
promise 'systemd-analyze security: below 1' box systemd-analyze security --no-pager --threshold=9 queuectl.service
promise 'the exposure is said once' says 'OK|SAFE' box_sh 'systemd-analyze security --no-pager queuectl.service | tail -n 1'
promise 'the sandbox holds: all is read-only for the service' says '^ro,' box_sh "awk '\$5 == \"/\" {print \$6}' /proc/$(main_pid)/mountinfo | tail -n 1"
promise '... but its own folder' says '^rw,' box_sh "awk '\$5 == \"/var/lib/queuectl\" {print \$6}' /proc/$(main_pid)/mountinfo"

# --- the page: the service has no network, systemd opens its socket
# http METHOD PATH HOST COOKIE BODY [USER] asks for the page, from within the box.
http() {
	box setpriv --reuid="${6:-eve}" --clear-groups --regid=nogroup bash -c '
		exec 3<>/dev/tcp/127.0.0.1/7070 || exit 7
		printf "%s %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s" "$1" "$2" "$3" "$4" "${#5}" "$5" >&3
		timeout 10 cat <&3' http "$1" "$2" "$3" "$4" "$5"
}
page_is_there() { says '401 Unauthorized' http GET / localhost '' ''; }
promise 'the page is off' same 'disabled inactive' "$(box_sh 'systemctl is-enabled queuectl-web.socket; systemctl is-active queuectl-web.socket' | xargs)"
promise '... and its socket is not there' refuses http GET / localhost '' ''
promise '... which the service cannot open; it says who can' ends 5 'systemctl enable queuectl-web.socket' q root web start
q alice enqueue --id outlives --command 'until [ -e page-end ]; do sleep 0.1; done' >/dev/null
promise 'it is enabled as that says' box_sh 'systemctl enable queuectl-web.socket && systemctl restart queuectl.service'
promise '... and is there' within 5 page_is_there
was=$(job outlives '"\(.state) \(.pid)"')
promise '... with the service'"'"'s network as it was' same lo "$(box_sh "sed -n 's/^ *\([a-z0-9]*\):.*/\1/p' /proc/$(main_pid)/net/dev")"
enters() {
	local link host cookie
	link=$(q alice web open)
	host=${link#http://}
	host=${host%%/*}
	cookie=$(http POST /open "$host" '' "link=${link##*link=}" | sed -n 's/^Set-Cookie: \([^;]*\).*/\1/p')
	http GET /api/whoami "$host" "$cookie" '' | grep '"alice"'
}
promise '... a link lets a browser in, as whoever asked for it' enters
promise '... web stop says what ends it' ends 5 'systemctl disable --now queuectl-web.socket' q root web stop
box kill -KILL "$(main_pid)"
promise 'killed, the service has it again' within 10 page_is_there
promise '... and what ran runs on' same "$was" "$(job outlives '"\(.state) \(.pid)"')"
as alice touch page-end
promise '... to its end' within 10 in_state completed outlives
box systemctl stop queuectl.socket queuectl.service
promise 'stopped, no browser starts it' refuses http GET / localhost '' ''
promise '... and it stays so' same inactive "$(box systemctl is-active queuectl.service)"
box systemctl start queuectl.socket queuectl.service
promise 'started, it has the page again' within 5 page_is_there
box_sh 'systemctl disable --now queuectl-web.socket && systemctl restart queuectl.service' 2>/dev/null
promise 'off again' refuses http GET / localhost '' ''
promise '... for the service, too' ends 5 'web start' q alice web open

# --- traces: docs/tracing.md has the lines that give the service a network
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
promise 'a collector listens' within 5 box bash -c 'exec 3<>/dev/tcp/127.0.0.1/4318'
q root config set traces.endpoint http://127.0.0.1:4318 >/dev/null
trace=4bf92f3577b34da6a3ce929d0e0e4736
traced() { as alice env TRACEPARENT="00-$trace-00f067aa0ba902b7-01" queuectl run -- sh -c 'echo $TRACEPARENT' | grep -v 00f067aa0ba902b7; }
promise 'a job is told of its span, whatever becomes of that' says "^00-$trace-" traced
promise '... which the packaged service cannot send; the journal says what to do' within 20 says 'docs/tracing.md' journal "$service" -n 50
mkdir -p "$box_dir/root/etc/systemd/system/queuectl.service.d"
sed -n '/^# systemctl edit queuectl.service$/,/^```$/p' "$project/docs/tracing.md" | sed '1d;$d' >"$box_dir/root/etc/systemd/system/queuectl.service.d/network.conf"
promise 'with the lines of the page' box_sh 'grep -q PrivateNetwork=no /etc/systemd/system/queuectl.service.d/network.conf && systemctl daemon-reload && systemctl restart queuectl.service'
within 5 answers >/dev/null
traced >/dev/null
spans() { box test -s /run/spans && box perl -0777 -ne 'exit !(m{^POST /v1/traces}m && index($_, pack("H*", "'$trace'")) >= 0)' /run/spans; }
promise '... in the trace of whoever enqueued it' within 10 spans
box_sh 'systemctl stop collector; rm -r /etc/systemd/system/queuectl.service.d /run/spans; systemctl daemon-reload; systemctl restart queuectl.service'
q root config unset traces.endpoint >/dev/null
promise 'no unit has failed over that' same '' "$(box systemctl list-units --failed --no-legend)"

summary
