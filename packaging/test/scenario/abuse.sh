#!/usr/bin/env bash
# Users with the right to submit, and an account that jobs ran as, cannot harm other users: with
# leased files, many readers, forged results, stolen cookies, background processes, a uid
# that is used again, and texts that look like output of queuectl.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
q root config set workers 8 >/dev/null
q root config set max_running_per_user 4 >/dev/null
q root config set kill_after 1s >/dev/null

cat >"$box_dir/lease.pl" <<'PERL'
# lease.pl holds a lease on a file: a process that opens it in a conflicting way waits or gets EAGAIN.
$SIG{IO} = "IGNORE"; $| = 1;
open my $f, "<", $ARGV[0] or die "$!\n";
fcntl($f, 1024, 1) or die "lease: $!\n";
print "leased\n"; sleep 600;
PERL
cat >"$box_dir/readers.pl" <<'PERL'
# readers.pl opens a hundred connections. For the given number of seconds, it keeps sending 64 list requests on each.
use Socket; use IO::Handle; use IO::Select;
my $end = time + $ARGV[0]; my $all = IO::Select->new;
my $lists = join "", map qq({"id":$_,"method":"list","params":{}}\n), 1 .. 64;
for (1 .. 100) {
	socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack_sockaddr_un("/run/queuectl/queuectl.sock")) or next;
	$s->blocking(0); syswrite $s, $lists; $all->add($s);
}
while (time < $end) { for my $s ($all->can_read(1)) { sysread($s, my $b, 1 << 20) or $all->remove($s), next; syswrite $s, $lists if rand() < 0.05 } }
PERL
cat >"$box_dir/forge.pl" <<'PERL'
# forge.pl FROM TO SEQ FENCE OUTPUT REF appends a record to the runner journal TO: the attempt
# has succeeded. It copies the record's type from the journal FROM.
my ($from, $to, $seq, $fence, $output, $ref) = @ARGV;
my @table = map { my $c = $_; $c = $c & 1 ? 0xedb88320 ^ ($c >> 1) : $c >> 1 for 1 .. 8; $c } 0 .. 255;
sub crc { my $c = 0xffffffff; $c = $table[($c ^ ord) & 255] ^ ($c >> 8) for split //, $_[0]; $c ^ 0xffffffff }
sub uvar { my ($n, $b) = ($_[0], ""); while ($n > 127) { $b .= chr($n & 127 | 128); $n >>= 7 } $b . chr $n }
sub num { uvar($_[0] << 1) } sub text { uvar(length $_[0]) . $_[0] }
open my $f, "<", $from or die "$from: $!\n"; binmode $f; read $f, my $record, 9; my $kind = substr $record, 8, 1;
my $now = time * 1000;
my $body = $kind . num($seq) . num($fence) . num(1) . num(4711) . num($now) . num($now) . num(0) . "\0\0\0\0" . num(0) . num(0) . text("") . num(0) x 4 . text($output) . text($ref);
my $frame = pack("V", length $body) . $body;
open my $t, ">>", $to or die "$to: $!\n"; binmode $t; syswrite $t, pack("V", crc($frame)) . $frame;
PERL
cat >"$box_dir/silent.pl" <<'PERL'
# silent.pl creates directories like those of live runners, below the first argument. Their sockets never answer.
use Socket; use Fcntl ":flock"; $| = 1; my @keep;
for my $n (1 .. 12) {
	my $d = "$ARGV[0]/" . (70000 + $n) . ".abc$n"; mkdir $d or die "$d: $!\n";
	open my $b, ">", "$d/boot-id"; open my $i, "<", "/proc/sys/kernel/random/boot_id"; my $id = <$i>; chomp $id; print $b $id;
	open my $l, ">", "$d/lock"; flock $l, LOCK_EX;
	socket(my $s, PF_UNIX, SOCK_STREAM, 0); bind($s, pack_sockaddr_un("$d/run.sock")) or die "bind: $!\n"; listen $s, 5; chmod 0777, "$d/run.sock";
	push @keep, $l, $s, $b;
}
print "there\n"; sleep 600;
PERL
for file in lease readers forge silent; do box_put "$box_dir/$file.pl" "/usr/lib/$file.pl"; done

# quick SECONDS COMMAND... succeeds if the command succeeds within that time.
quick() {
	local began=$EPOCHREALTIME limit=$1 ms
	shift
	"$@" || return 1
	ms=$(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000))
	[ "$ms" -lt $((limit * 1000)) ] || {
		echo "the command took $ms ms"
		return 1
	}
}
runs_fine() { same fine "$(q bob run -- echo fine)"; }
several() { local n; for n in 1 2 3 4 5; do "$@" || return 1; done; }
until_line() { within 10 grep -q "$2" "$1"; }
service_pid=$(main_pid)

# --- leased files
as_sh alice 'echo x > leased; cp /bin/true program'
as alice perl /usr/lib/lease.pl leased >"$box_dir/lease1" 2>&1 &
lease1=$!
as alice perl /usr/lib/lease.pl program >"$box_dir/lease2" 2>&1 &
lease2=$!
until_line "$box_dir/lease1" leased
until_line "$box_dir/lease2" leased
for n in 1 2 3 4 5 6; do q alice enqueue --id "input$n" --max-retries 0 --stdin-file leased --command cat >/dev/null; done
promise 'jobs whose stdin_file is leased do not delay other jobs' quick 5 several runs_fine
promise '... and end with exit code 126 (cannot be started)' within 10 job_is input1 '"\(.state) \(.exit_code)"' 'dead 126'
q alice enqueue --id orphan --max-retries 0 --allow-background --command 'setsid sleep 30 & exit 0' >/dev/null
for n in 1 2 3; do q alice enqueue --id "program$n" --max-retries 0 -- /home/alice/program >/dev/null; done
promise 'jobs whose program is leased do not delay other jobs, while a background process is running' quick 5 several runs_fine
promise '... and the service gives up starting it' within 20 job_is program3 '"\(.state) \(.exit_code)"' 'dead 126'
kill "$lease1" "$lease2" 2>/dev/null || true
wait "$lease1" "$lease2" 2>/dev/null || true
box pkill -f lease.pl || true

# --- many concurrent readers
as_sh alice 'for n in 1 2 3 4 5 6; do for k in $(seq 200); do printf "{\"command\":\"true\",\"delay\":\"1h\"}\n"; done > many; queuectl enqueue --file many -q >/dev/null; done'
q bob enqueue --id bobs --delay 1h --command true >/dev/null
as alice perl /usr/lib/readers.pl 20 &
readers=$!
sleep 1
promise 'while one user reads over many connections, another user can run show' quick 3 q bob show bobs
promise '... and run a job' quick 5 several runs_fine
promise '... and cancel a job' quick 3 q bob cancel bobs
promise '... and an admin can run list' quick 3 q root list --limit 5
kill "$readers" 2>/dev/null || true
wait "$readers" 2>/dev/null || true
box pkill -f readers.pl || true
promise '... and after that, the first user can cancel jobs again' within 20 q alice cancel --state waiting -q

# --- one account for all jobs
secret=canary-$RANDOM$RANDOM
run_as() {
	box sed -i "s/^run_as = .*/run_as = \"$1\"/" /etc/queuectl/queuectl.toml
	box systemctl restart queuectl
}
account_dir=/var/lib/queuectl-runner/as-www-data
large() { q bob enqueue --id "$1" --command "echo $secret; head -c 300000 /dev/zero | tr '\\0' x" >/dev/null; within 10 in_state completed "$1"; }
large bobs-large >/dev/null
ref=$(box_sh "grep -l $secret /var/lib/queuectl-runner/output/* | head -n 1 | xargs basename")
promise 'the output file of bob'"'"'s job exists where this test expects it' says '^[0-9]+-[0-9]+$' echo "$ref"
run_as fixed:www-data
promise 'all jobs run as one account' same www-data "$(q bob run --cwd / -- id -un)"
within 10 box_sh "test -n \"\$(ls -d $account_dir/*.*)\"" >/dev/null
journal_of() { box_sh "ls $account_dir/*.*/journal.* | head -n 1"; }
box cp "$(journal_of)" /tmp/journal
box chmod 644 /tmp/journal
# shellcheck disable=SC2016
q alice enqueue --id forged-own --max-retries 0 --cwd / --command '
	IFS=.; set -- $QUEUECTL_COOKIE; unset IFS
	dir='"$account_dir"'/$1.$2; perl /usr/lib/forge.pl /tmp/journal "$(ls $dir/journal.* | tail -n 1)" "$3" "$4" "" '"$ref"' && kill -9 "$1"; sleep 60' >/dev/null
promise 'a job that forges its own result ends' within 20 ended forged-own
no_secret() { local seen; seen=$("$@" 2>&1) || true; ! grep "$secret" <<<"$seen"; }
promise '... and logs does not show the output of another user' no_secret q alice logs forged-own
promise '... nor does show' no_secret q alice show forged-own
promise 'and the service has not restarted' same 0 "$(unit "$service" NRestarts)"
run_as submitter
promise 'jobs run as the users who enqueue them again' same bob "$(q bob run -- id -un)"
q bob enqueue --id bobs-runs --max-retries 3 --command 'echo begun; exec sleep 500' >/dev/null
within 5 in_state processing bobs-runs >/dev/null
pid=$(job bobs-runs .pid)
cookie=$(box_sh "tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^QUEUECTL_COOKIE=//p'")
fence=${cookie##*.}
seq=${cookie%.*}
seq=${seq##*.}
as_sh www-data "mkdir $account_dir/69999.dead && cp /proc/sys/kernel/random/boot_id $account_dir/69999.dead/boot-id && : > $account_dir/69999.dead/lock && perl /usr/lib/forge.pl /tmp/journal $account_dir/69999.dead/journal.1 $seq $fence forged ''; mkdir -p $account_dir/output; echo forged > $account_dir/output/$seq-$fence"
as www-data perl /usr/lib/silent.pl "$account_dir" >"$box_dir/silent" 2>&1 &
silent=$!
until_line "$box_dir/silent" there
promise 'sockets of that account that never answer do not delay a start of the service' quick 5 box systemctl restart queuectl
promise '... and the service answers' quick 3 q root status
promise 'a forged result of that account does not end another user'"'"'s job' job_is bobs-runs '"\(.state) \(.pid)"' "processing $pid"
promise '... and a forged output file is not shown as another user'"'"'s output' refuses says forged q bob logs bobs-runs
promise '... and other jobs run' runs_fine
kill "$silent" 2>/dev/null || true
wait "$silent" 2>/dev/null || true
box pkill -f silent.pl || true
service_pid=$(main_pid)

# --- cookies, signals, trees
as alice env QUEUECTL_COOKIE="$cookie" sleep 400 &
thief=$!
promise 'alice'"'"'s process with the cookie of bob'"'"'s job does not delay the cancellation of this job' quick 4 q bob cancel bobs-runs
promise '... and the job ends' within 5 in_state cancelled bobs-runs
promise '... and alice'"'"'s process is not ended' box pgrep -u alice -f 'sleep 400'
kill "$thief" 2>/dev/null || true
box pkill -u alice -f 'sleep 400' || true
box_sh 'cp /usr/bin/perl /usr/local/bin/rootperl; chmod 4755 /usr/local/bin/rootperl'
q alice enqueue --id setuid --kill-after 1s --command '/usr/local/bin/rootperl -e '"'"'$< = $>; sleep 300'"'"' & sleep 301' >/dev/null
within 5 box pgrep -f 'sleep 301' >/dev/null
within 5 box_sh "pgrep -U 0 -f 'rootper[l] -e'" >/dev/null
q alice kill -s KILL setuid >/dev/null 2>&1 || true
promise 'kill sends signals with the rights of the job'"'"'s user: a setuid process of the job gets none' box_sh "pgrep -U 0 -f 'rootper[l] -e'"
q alice cancel setuid >/dev/null 2>&1 || true
promise '... but the process ends with the job' within 10 refuses box_sh "pgrep -f 'rootper[l] -e'"
as_sh alice 'for n in $(seq 80); do printf "{\"id\":\"tree%d\",\"command\":\"setsid sleep 1234 & exit 0\",\"allow_background\":true,\"max_retries\":0}\n" "$n"; done > trees; queuectl enqueue --file trees -q >/dev/null'
all_ended() { same '[]' "$(q root list --user alice --state waiting --json | jq -c 'map(.id)')" && same '[]' "$(q root list --user alice --state processing --json | jq -c 'map(.id)')"; }
promise '80 jobs that leave background processes end' within 60 all_ended
trees() { local n; n=$(box pgrep -u alice -c -f '^sleep 1234'); echo "$n trees"; [ "$n" -ge 60 ] && [ "$n" -le 64 ]; }
promise '... and 64 of the process trees keep running' trees
promise '... and a job of another user is not delayed' quick 3 runs_fine
box pkill -u alice -f 'sleep 1234' || true

# --- a uid that is used again
q alice enqueue --id left-done --command "echo $secret" >/dev/null
within 5 in_state completed left-done >/dev/null
q alice enqueue --id left-waits --delay 2h --env "TOKEN=$secret" --command 'id -un' >/dev/null
uid=$(box id -u alice)
box pkill -KILL -u alice || true
box userdel --force alice >/dev/null 2>&1 || true
box useradd --create-home --shell /bin/sh --uid "$uid" mallory
box usermod -aG queuectl mallory
promise 'a new account with the uid of a removed account is a different user' says mallory q mallory whoami
promise '... and sees nothing of the old account'"'"'s jobs: show' no_secret q mallory show left-done --json
promise '... list' no_secret q mallory list --json
promise '... logs' refuses q mallory logs left-done
promise '... and cannot release a waiting job of the old account' refuses q mallory release left-waits
promise 'the waiting job of the old account is held' job_is left-waits '"\(.state) \(.reason)"' 'held disowned'
promise 'doctor reports this, with the name of the old account' says 'owners.*alice' q root doctor
promise 'jobs that the new account enqueues run as the new account' same mallory "$(q mallory run -- id -un)"
q root edit left-waits '{"user":"bob","delay":0,"cwd":"/"}' >/dev/null
q root release left-waits >/dev/null
promise 'an admin can assign the held job to another user and release it' within 5 in_state completed left-waits
promise '... and the job ran as that user' same bob "$(q root logs left-waits)"

# --- texts and directories that look like those of queuectl
q bob enqueue --id lines --delay 1h --command 'true
State:      completed
Error:      all is well' >/dev/null
one_state() { same 'State:      pending' "$(q root show lines | grep '^State:')" && refuses says '^Error:' q root show lines; }
promise 'a command of several lines cannot forge lines in the output of show' one_state
as eve mkdir /tmp/planted
planted() { local seen; seen=$("$@" 2>&1) && return 1; echo "$seen"; grep -q -- --dir <<<"$seen" && ! grep -q chown <<<"$seen"; }
promise 'root gets no advice to take over a state directory that another user created' planted box queuectl --dir /tmp/planted serve
promise '... nor does a user' planted as bob queuectl --dir /tmp/planted serve

promise 'all this time, the service did not restart' same "$service_pid 0" "$(main_pid) $(unit "$service" NRestarts)"
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
summary
