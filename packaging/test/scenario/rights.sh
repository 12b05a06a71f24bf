#!/usr/bin/env bash
# Access rights: every command, by users with each of the rights, on their own jobs and on
# jobs of others, as real users through the real socket.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
# set_access READ SUBMIT OPERATE ADMIN, each a TOML list.
set_access() {
	box sed -i '/^\[access\]/,$d' /etc/queuectl/queuectl.toml
	printf '[access]\nread = %s\nsubmit = %s\noperate = %s\nadmin = %s\n' "$@" >"$box_dir/access"
	cat "$box_dir/access" >>"$box_dir/root/etc/queuectl/queuectl.toml"
	box systemctl reload queuectl
}
within 5 answers >/dev/null
promise 'rights are given to users and groups' set_access '["@queuectl"]' '["alice", "bob"]' '["olga"]' '["@queuectl-admin"]'
q root config set workers 40 >/dev/null
q root config set kill_after 1s >/dev/null

# --- whoami
promise 'whoami shows the right: read' says 'read' q rita whoami
promise '... submit' says 'submit' q alice whoami
promise '... operate' says 'operate' q olga whoami
promise '... admin' says 'admin' q adam whoami
promise '... admin, for root' says 'admin' q root whoami
promise '... in JSON, with the uid from the kernel' same "$(box id -u alice)" "$(q alice whoami --json | jq .uid)"

# --- the matrix
# A row has the state of the job, the command (ID means the job's ID) and whether it is
# allowed (y), rejected (n) or not tested (-) for these users: rita with bob's job, alice with
# her own job, alice with bob's job, olga with bob's job, adam with bob's job.
matrix='
-          |status                            |y y y y y
-          |list                              |y y y y y
-          |worker list                       |y y y y y
-          |dlq list                          |y y y y y
-          |events                            |y y y y y
-          |config list                       |y y y y y
-          |config get workers                |y y y y y
-          |whoami                            |y y y y y
completed  |show ID                           |y y y y y
completed  |logs ID                           |n y n y y
processing |logs ID                           |n y n y y
completed  |wait ID                           |y y y y y
-          |enqueue true                      |n y - y y
-          |enqueue --user bob true           |n n - n y
-          |enqueue --user WHO true           |n y - y y
pending    |hold ID                           |n y n y y
held       |release ID                        |n y n y y
pending    |edit ID --priority 9              |n y n y y
pending    |cancel ID                         |n y n y y
processing |cancel ID                         |n y n y y
processing |kill -s USR1 ID                   |n y n y y
processing |pause ID                          |n y n y y
processing |resume ID                         |n y n y y
-          |pause --all                       |n n - y y
-          |resume --all                      |n n - y y
processing |requeue ID                        |n y n y y
completed  |retry ID                          |n y n y y
dead       |retry ID                          |n y n y y
dead       |dlq retry ID                      |n y n y y
completed  |rm ID                             |n y n y y
processing |rm --force ID                     |n y n y y
-          |worker start -c 1                 |n n - y y
-          |worker stop -c 1                  |n n - y y
-          |worker scale 40                   |n n - y y
-          |config set priority 5             |n n - n y
-          |config unset priority             |n n - n y
-          |events --audit                    |n n - n y
-          |backup BACKUP                     |n n - n y
-          |doctor                            |n n - n y
-          |drain                             |n n - n y
-          |drain --off                       |n n - n y
-          |reload                            |n n - n y
-          |cleanup --days 30                 |n n - n y
-          |dlq clear --yes                   |n n - y y
-          |clear --yes                       |n n - y y
'
count=0
# prepared STATE OWNER creates a job of the owner in that state.
prepared() {
	local id=m$count owner=$2
	case $1 in
	pending) q "$owner" enqueue --id "$id" --delay 1h --command true ;;
	held) q "$owner" enqueue --id "$id" --delay 1h --command true && q root hold "$id" ;;
	processing) q "$owner" enqueue --id "$id" --command 'trap : USR1; echo out; while :; do sleep 0.2; done' && within 5 in_state processing "$id" ;;
	completed) q "$owner" enqueue --id "$id" --command 'echo out' && within 5 in_state completed "$id" ;;
	dead) q "$owner" enqueue --id "$id" --max-retries 0 --command 'exit 1' && within 5 in_state dead "$id" ;;
	esac >/dev/null 2>&1
}
# cell STATE VERB WHO OWNER MAY runs the command as WHO and succeeds if it is allowed or rejected as MAY says.
cell() {
	local state=$1 verb=$2 who=$3 owner=$4 may=$5 code=0 seen
	[ "$state" = - ] || prepared "$state" "$owner" || {
		echo "cannot create a job in the state $state"
		return 1
	}
	verb=${verb//ID/m$count}
	verb=${verb//WHO/$who}
	verb=${verb//BACKUP/copy-$count}
	# shellcheck disable=SC2086
	seen=$(q "$who" $verb 2>&1) || code=$?
	case $may in
	y) [ "$code" = 0 ] || { echo "$who: $verb: code $code: $seen"; return 1; } ;;
	n)
		[ "$code" = 5 ] || { echo "$who: $verb: code $code, want 5: $seen"; return 1; }
		grep -Eq 'access|queuectl-admin|operate|submit|admin' <<<"$seen" || { echo "$who: $verb: the message does not say what to do: $seen"; return 1; }
		# The rejected command must not have changed the job.
		[ "$state" = - ] || in_state "$state" "m$count" || return 1
		;;
	esac
}
row() {
	local state=$1 verb=$2 wrong=0
	shift 2
	while read -r who owner; do
		if [ "$1" != - ]; then
			count=$((count + 1))
			cell "$state" "$verb" "$who" "$owner" "$1" || wrong=1
			[ "$state" != processing ] || q root rm --force "m$count" >/dev/null 2>&1 || true
		fi
		shift
	done <<-'PEOPLE'
		rita bob
		alice alice
		alice bob
		olga bob
		adam bob
	PEOPLE
	return $wrong
}
cells=0
while IFS='|' read -r state verb may; do
	[ -n "$verb" ] || continue
	state=$(xargs <<<"$state")
	verb=$(xargs <<<"$verb")
	# shellcheck disable=SC2086
	promise "$verb$([ "$state" = - ] || echo " ($state)"): $may" row "$state" "$verb" $may
	count=$((count + 5))
	cells=$((cells + $(tr -cd yn <<<"$may" | wc -c)))
done <<<"$matrix"
note "$cells cells"
# Undo the effects of the matrix on the whole queue.
q root drain --off >/dev/null 2>&1 || true
q root worker scale 8 >/dev/null

# --- selectors match only the user's own jobs
q alice enqueue --id mine --delay 1h --command true >/dev/null
q bob enqueue --id his --delay 1h --command true >/dev/null
q alice hold --state pending >/dev/null 2>&1 || true
promise 'a command of a submitter that selects jobs changes only the submitter'"'"'s own jobs' same 'held pending' "$(job mine .state) $(job his .state)"
q alice cancel --user bob >/dev/null 2>&1 || true
promise '... even with --user of another user' job_is his .state pending

# --- what other users see of a job
canary=canary-$RANDOM$RANDOM
q bob enqueue --id hush --max-retries 0 --env "TOKEN=$canary" --label team=x --command "echo $canary; echo $canary >&2; exit 3" >/dev/null
within 5 in_state dead hush >/dev/null
quiet() {
	local seen
	seen=$("$@" 2>&1) || true
	! grep -F "$canary" <<<"$seen"
}
for who in rita alice; do
	for verb in 'show hush' 'show hush --json' 'show hush --json --full' 'list --json --limit 1000' 'list' 'events' 'events --json' 'dlq list --json' 'status --json' 'logs hush'; do
		# shellcheck disable=SC2086
		promise "$who does not see the command, environment or output of bob's job: $verb" quiet q $who $verb
	done
done
promise '... but a reader sees that the job exists, its user and its state' says 'hush +dead +bob' q rita list --columns id,state,user
promise 'bob sees his own command' says "$canary" q bob show hush --json
promise 'an operator sees the command and output of others' says "$canary" q olga show hush
env_quiet() { ! q olga show hush --json --full | jq -r '.. | .env? // empty' | grep -F "$canary"; }
promise '... but not the environment' env_quiet
promise 'an admin also sees the environment' says "$canary" box_sh "queuectl show hush --json --full | jq -r '.. | .env? // empty'"

# --- secrets leak nowhere else
promise 'the journal contains no secret of the job' box_sh "journalctl --sync; ! journalctl --no-pager -o json -u 'queuectl*' | grep -F $canary"
q bob enqueue --id hush2 --env "TOKEN=$canary" --command 'sleep 3' >/dev/null
within 5 in_state processing hush2 >/dev/null
promise '... nor do the command lines of the service and the runners' box_sh "! for p in \$(pgrep -f '^/usr/(bin|libexec/queuectl)/queuectl'); do tr '\\0' ' ' < /proc/\$p/cmdline; tr '\\0' ' ' < /proc/\$p/environ; done | grep -F $canary"
promise '... nor any file that an ordinary user can read' refuses as alice sh -c "grep -rIlsF $canary /var/lib/queuectl /var/lib/queuectl-runner /run /etc /var/log"

# --- audit
promise 'an admin can list who did what' says 'cancel|kill|hold' q adam events --audit
promise '... with the uid' box_sh "queuectl events --audit --json | jq -e -s 'flatten | map(select((.uid // .detail.uid) == $(box id -u olga))) | length > 0'"

# --- the kernel identifies the user
promise 'a user outside the group cannot connect' ends 5 'group' q eve status
cat >"$box_dir/ask.pl" <<'PERL'
use Socket; use IO::Handle;
socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack_sockaddr_un("/run/queuectl/queuectl.sock")) or die "connect: $!\n"; $s->autoflush(1);
print $s qq({"jsonrpc":"2.0","id":1,"method":"$ARGV[0]","params":$ARGV[1]}\n); print scalar <$s>;
PERL
box_put "$box_dir/ask.pl" /usr/lib/ask.pl
in_namespace() { as alice unshare --user --map-root-user "$@"; }
promise 'root in a user namespace is the user who created the namespace' says "\"uid\": *$(box id -u alice)\b" in_namespace perl /usr/lib/ask.pl whoami '{}'
promise '... with the same rights' says -32004 in_namespace perl /usr/lib/ask.pl config.set '{"key":"priority","value":"7"}'
promise '... and queuectl does not trust a service whose account does not exist in the namespace' ends 5 'namespace' in_namespace queuectl status
has_lost() { grep '^3 .*"read"' "$1" && ! grep '^3 .*"submit"' "$1"; }
# A connection keeps its groups. After a user has left the group, the user's new connections are rejected.
cat >"$box_dir/hold.pl" <<'PERL'
use Socket; use IO::Handle;
socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack_sockaddr_un("/run/queuectl/queuectl.sock")) or die "connect: $!"; $s->autoflush(1); $| = 1;
my $n = 0;
sub ask { my ($m) = @_; $n++; print $s qq({"jsonrpc":"2.0","id":$n,"method":"$m","params":{}}\n); my $a = <$s>; print "$n $a" }
for my $next ("", "next1", "next2") { until (-e "/home/alice/$next") { select(undef, undef, undef, 0.05) } ask("whoami") }
PERL
box_put "$box_dir/hold.pl" /usr/lib/hold.pl
as alice perl /usr/lib/hold.pl >"$box_dir/held" 2>&1 &
holder=$!
within 5 grep -q '^1 ' "$box_dir/held"
box gpasswd -d alice queuectl >/dev/null
as alice touch next1
promise 'a connection keeps the groups that its user had at the start' within 5 grep -q '^2 .*"submit"' "$box_dir/held"
promise '... a new connection is rejected' ends 5 'group' q alice list
set_access '["@queuectl"]' '["bob"]' '["olga"]' '["@queuectl-admin"]'
as alice touch next2
promise 'a change of [access] applies to the next request of an open connection' within 5 has_lost "$box_dir/held" "$box_dir/held"
wait "$holder" || true
box usermod -aG queuectl alice
set_access '["@queuectl"]' '["alice", "bob"]' '["olga"]' '["@queuectl-admin"]'

# --- attacks of a job on other users
q bob enqueue --id bobs --command 'echo bob-secret; exec sleep 500' >/dev/null
within 5 in_state processing bobs >/dev/null
bobs_pid=$(job bobs .pid)
runner_pid=$(runner_pids | head -n 1)
service_pid=$(main_pid)
attack() { refuses q alice run --max-retries 0 -- sh -c "$1"; }
promise 'a job cannot read the output of another user'"'"'s job' attack 'queuectl logs bobs'
promise '... nor through its file descriptors' attack "cat /proc/$bobs_pid/fd/1 || ls -l /proc/$bobs_pid/fd/"
promise '... nor its environment' attack "cat /proc/$bobs_pid/environ"
promise '... nor trace it' attack "timeout 2 strace -p $bobs_pid"
promise '... nor signal it' attack "kill -0 $bobs_pid"
promise '... nor signal the service' attack "kill -0 $service_pid"
promise '... nor the runner' attack "kill -0 $runner_pid"
promise '... nor trace the runner' attack "timeout 2 strace -p $runner_pid"
promise '... nor read its memory or environment' attack "cat /proc/$runner_pid/environ || cat /proc/$runner_pid/mem"
promise '... nor the service'"'"'s' attack "cat /proc/$service_pid/environ"
connects() { echo "perl -MSocket -e 'socket(S,PF_UNIX,SOCK_STREAM,0) or exit 0; connect(S,pack_sockaddr_un(\"$1\")) or die \"\$!\n\"'"; }
promise '... nor connect to the socket for runners' attack "$(connects /run/queuectl-runner/spawn.sock)"
runner_socket=$(box_sh "echo /var/lib/queuectl-runner/$runner_pid.*/run.sock")
promise 'root can connect to the socket of a runner' box_sh "$(connects "$runner_socket")"
promise '... but a job of a user cannot' attack "$(connects "$runner_socket")"
promise '... nor list the runners' attack 'ls /var/lib/queuectl-runner'
promise '... nor switch to another user' attack 'setpriv --reuid=bob --clear-groups id || su bob -c id </dev/null'
promise '... nor switch to root' attack 'setpriv --reuid=0 id'
promise '... nor leave its control group' attack 'for f in /sys/fs/cgroup/unified/cgroup.procs /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/unified/system.slice/cgroup.procs; do echo $$ > $f && exit 0; done; exit 1'
promise '... nor freeze or kill the control groups of other jobs' attack "for f in \$(find /sys/fs/cgroup -path '*queuectl*' \\( -name cgroup.kill -o -name cgroup.freeze \\) 2>/dev/null); do echo 1 > \$f && exit 0; done; exit 1"
promise 'bob'"'"'s job is still the same process' job_is bobs .pid "$bobs_pid"
promise '... and so are the service and the runner' same "$service_pid $runner_pid" "$(main_pid) $(runner_pids | head -n 1)"

# --- hooks
q root config set hooks.on_dead 'echo settings hook: $(id -un) in $(pwd)' >/dev/null
q alice run --id hooked --max-retries 0 --on-dead 'echo job hook: $(id -un)' -- false >/dev/null 2>&1 || true
hook_of() { q root list --queue hooks --label job=hooked --json | jq -r ".[] | select(.user == \"$1\" and .state == \"completed\") | .id"; }
hooked() { [[ -n $(hook_of alice) && -n $(hook_of queuectl-hook) ]]; }
promise 'both hooks of a dead job have run' within 20 hooked
promise 'the hook of the job runs as the job'"'"'s user' says 'job hook: alice' q root logs "$(hook_of alice)"
promise 'the hook of the settings runs as an account that owns no files' says 'settings hook: queuectl-hook in /$' q root logs "$(hook_of queuectl-hook)"
promise '... and other users cannot see this hook' ends 4 'there is no job' q alice logs "$(hook_of queuectl-hook)"
q root config unset hooks.on_dead >/dev/null
summary
