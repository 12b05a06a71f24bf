#!/usr/bin/env bash
# What users with the right to submit, and an account that jobs ran as, can do to others:
# nothing. Files under leases, readers in crowds, forged results, stolen cookies, trees in
# the background, a number that is used again, texts that look like ours.
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
# holds a lease on a file: who opens it otherwise waits, or is told to come back
$SIG{IO} = "IGNORE"; $| = 1;
open my $f, "<", $ARGV[0] or die "$!\n";
fcntl($f, 1024, 1) or die "lease: $!\n";
print "leased\n"; sleep 600;
PERL
cat >"$box_dir/crowd.pl" <<'PERL'
# a hundred connections with 64 lists each, again and again, for so many seconds
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
# forge.pl FROM TO SEQ FENCE OUTPUT REF adds to a runner's journal that an attempt ended well,
# in records of the kind that there are in another one.
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
# runners' folders below the first argument that look alive and answer nothing
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
for file in lease crowd forge silent; do box_put "$box_dir/$file.pl" "/usr/lib/$file.pl"; done

# quick SECONDS COMMAND... succeeds within so long.
quick() {
	local began=$EPOCHREALTIME limit=$1 ms
	shift
	"$@" || return 1
	ms=$(((${EPOCHREALTIME/[.,]/} - ${began/[.,]/}) / 1000))
	[ "$ms" -lt $((limit * 1000)) ] || {
		echo "it took $ms ms"
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
promise 'jobs that are fed from a leased file hold nobody up' quick 5 several runs_fine
promise '... and end as not runnable' within 10 job_is input1 '"\(.state) \(.exit_code)"' 'dead 126'
q alice enqueue --id orphan --max-retries 0 --allow-background --command 'setsid sleep 30 & exit 0' >/dev/null
for n in 1 2 3; do q alice enqueue --id "program$n" --max-retries 0 -- /home/alice/program >/dev/null; done
promise 'a leased program beside an orphan holds nobody up' quick 5 several runs_fine
promise '... its start is given up' within 20 job_is program3 '"\(.state) \(.exit_code)"' 'dead 126'
kill "$lease1" "$lease2" 2>/dev/null || true
wait "$lease1" "$lease2" 2>/dev/null || true
box pkill -f lease.pl || true

# --- a crowd of readers
as_sh alice 'for n in 1 2 3 4 5 6; do for k in $(seq 200); do printf "{\"command\":\"true\",\"delay\":\"1h\"}\n"; done > many; queuectl enqueue --file many -q >/dev/null; done'
q bob enqueue --id bobs --delay 1h --command true >/dev/null
as alice perl /usr/lib/crowd.pl 20 &
crowd=$!
sleep 1
promise 'while one user reads on a hundred connections another one shows' quick 3 q bob show bobs
promise '... runs' quick 5 several runs_fine
promise '... cancels' quick 3 q bob cancel bobs
promise '... and an admin lists' quick 3 q root list --limit 5
kill "$crowd" 2>/dev/null || true
wait "$crowd" 2>/dev/null || true
box pkill -f crowd.pl || true
promise '... and the crowd'"'"'s own user goes on' within 20 q alice cancel --state waiting -q

# --- an account that all jobs run as
secret=canary-$RANDOM$RANDOM
run_as() {
	box sed -i "s/^run_as = .*/run_as = \"$1\"/" /etc/queuectl/queuectl.toml
	box systemctl restart queuectl
}
folder=/var/lib/queuectl-runner/as-www-data
large() { q bob enqueue --id "$1" --command "echo $secret; head -c 300000 /dev/zero | tr '\\0' x" >/dev/null; within 10 in_state completed "$1"; }
large bobs-large >/dev/null
ref=$(box_sh "grep -l $secret /var/lib/queuectl-runner/output/* | head -n 1 | xargs basename")
promise 'the output of bob'"'"'s is where it is looked for' says '^[0-9]+-[0-9]+$' echo "$ref"
run_as fixed:www-data
promise 'all jobs run as one account' same www-data "$(q bob run --cwd / -- id -un)"
within 10 box_sh "test -n \"\$(ls -d $folder/*.*)\"" >/dev/null
journal_of() { box_sh "ls $folder/*.*/journal.* | head -n 1"; }
box cp "$(journal_of)" /tmp/journal
box chmod 644 /tmp/journal
# shellcheck disable=SC2016
q alice enqueue --id forged-own --max-retries 0 --cwd / --command '
	IFS=.; set -- $QUEUECTL_COOKIE; unset IFS
	dir='"$folder"'/$1.$2; perl /usr/lib/forge.pl /tmp/journal "$(ls $dir/journal.* | tail -n 1)" "$3" "$4" "" '"$ref"' && kill -9 "$1"; sleep 60' >/dev/null
promise 'a result that its own job forges' within 20 ended forged-own
no_secret() { local seen; seen=$("$@" 2>&1) || true; ! grep "$secret" <<<"$seen"; }
promise '... shows nobody else'"'"'s output: logs' no_secret q alice logs forged-own
promise '... nor show' no_secret q alice show forged-own
promise 'and the service has not ended' same 0 "$(unit "$service" NRestarts)"
run_as submitter
promise 'jobs run as who submits them again' same bob "$(q bob run -- id -un)"
q bob enqueue --id bobs-runs --max-retries 3 --command 'echo begun; exec sleep 500' >/dev/null
within 5 in_state processing bobs-runs >/dev/null
pid=$(job bobs-runs .pid)
cookie=$(box_sh "tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^QUEUECTL_COOKIE=//p'")
fence=${cookie##*.}
seq=${cookie%.*}
seq=${seq##*.}
as_sh www-data "mkdir $folder/69999.dead && cp /proc/sys/kernel/random/boot_id $folder/69999.dead/boot-id && : > $folder/69999.dead/lock && perl /usr/lib/forge.pl /tmp/journal $folder/69999.dead/journal.1 $seq $fence forged ''; mkdir -p $folder/output; echo forged > $folder/output/$seq-$fence"
as www-data perl /usr/lib/silent.pl "$folder" >"$box_dir/silent" 2>&1 &
silent=$!
until_line "$box_dir/silent" there
promise 'a dozen silent sockets of that account do not hold a start up' quick 5 box systemctl restart queuectl
promise '... which answers' quick 3 q root status
promise 'a result that it plants does not end another'"'"'s job' job_is bobs-runs '"\(.state) \(.pid)"' "processing $pid"
promise '... nor is a planted output another'"'"'s' refuses says forged q bob logs bobs-runs
promise '... and others run' runs_fine
kill "$silent" 2>/dev/null || true
wait "$silent" 2>/dev/null || true
box pkill -f silent.pl || true
service_pid=$(main_pid)

# --- cookies, signals, trees
as alice env QUEUECTL_COOKIE="$cookie" sleep 400 &
thief=$!
promise 'a process of alice'"'"'s with the cookie of bob'"'"'s job holds its end not up' quick 4 q bob cancel bobs-runs
promise '... which ends' within 5 in_state cancelled bobs-runs
promise '... and is not ended with it' box pgrep -u alice -f 'sleep 400'
kill "$thief" 2>/dev/null || true
box pkill -u alice -f 'sleep 400' || true
box_sh 'cp /usr/bin/perl /usr/local/bin/rootperl; chmod 4755 /usr/local/bin/rootperl'
q alice enqueue --id setuid --kill-after 1s --command '/usr/local/bin/rootperl -e '"'"'$< = $>; sleep 300'"'"' & sleep 301' >/dev/null
within 5 box pgrep -f 'sleep 301' >/dev/null
within 5 box_sh "pgrep -U 0 -f 'rootper[l] -e'" >/dev/null
q alice kill -s KILL setuid >/dev/null 2>&1 || true
promise 'kill signals a job as its user: what it runs as root is spared' box_sh "pgrep -U 0 -f 'rootper[l] -e'"
q alice cancel setuid >/dev/null 2>&1 || true
promise '... but ends with its job' within 10 refuses box_sh "pgrep -f 'rootper[l] -e'"
as_sh alice 'for n in $(seq 80); do printf "{\"id\":\"tree%d\",\"command\":\"setsid sleep 1234 & exit 0\",\"allow_background\":true,\"max_retries\":0}\n" "$n"; done > trees; queuectl enqueue --file trees -q >/dev/null'
all_ended() { same '[]' "$(q root list --user alice --state waiting --json | jq -c 'map(.id)')" && same '[]' "$(q root list --user alice --state processing --json | jq -c 'map(.id)')"; }
promise '80 jobs that leave a tree in the background end' within 60 all_ended
trees() { local n; n=$(box pgrep -u alice -c -f '^sleep 1234'); echo "$n trees"; [ "$n" -ge 60 ] && [ "$n" -le 64 ]; }
promise '... of which 64 stay' trees
promise '... and a job of another is not held up' quick 3 runs_fine
box pkill -u alice -f 'sleep 1234' || true

# --- a number that is used again
q alice enqueue --id left-done --command "echo $secret" >/dev/null
within 5 in_state completed left-done >/dev/null
q alice enqueue --id left-waits --delay 2h --env "TOKEN=$secret" --command 'id -un' >/dev/null
uid=$(box id -u alice)
box pkill -KILL -u alice || true
box userdel --force alice >/dev/null 2>&1 || true
box useradd --create-home --shell /bin/sh --uid "$uid" mallory
box usermod -aG queuectl mallory
promise 'who gets a number is someone else than who had it' says mallory q mallory whoami
promise '... and sees nothing of what that one left: show' no_secret q mallory show left-done --json
promise '... list' no_secret q mallory list --json
promise '... logs' refuses q mallory logs left-done
promise '... nor may release what waits' refuses q mallory release left-waits
promise 'which is held' job_is left-waits '"\(.state) \(.reason)"' 'held disowned'
promise 'doctor says so, with the former name' says 'owners.*alice' q root doctor
promise 'what the next one enqueues is hers' same mallory "$(q mallory run -- id -un)"
q root edit left-waits '{"user":"bob","delay":0,"cwd":"/"}' >/dev/null
q root release left-waits >/dev/null
promise 'an admin has it run for somebody else' within 5 in_state completed left-waits
promise '... as whom it ran' same bob "$(q root logs left-waits)"

# --- texts and folders that look like ours
q bob enqueue --id lines --delay 1h --command 'true
State:      completed
Error:      all is well' >/dev/null
one_state() { same 'State:      pending' "$(q root show lines | grep '^State:')" && refuses says '^Error:' q root show lines; }
promise 'a command of several lines fakes none of show'"'"'s' one_state
as eve mkdir /tmp/planted
planted() { local seen; seen=$("$@" 2>&1) && return 1; echo "$seen"; grep -q -- --dir <<<"$seen" && ! grep -q chown <<<"$seen"; }
promise 'a planted state folder is not advised to be taken over: root' planted box queuectl --dir /tmp/planted serve
promise '... nor a user' planted as bob queuectl --dir /tmp/planted serve

promise 'the service has not noticed any of it' same "$service_pid 0" "$(main_pid) $(unit "$service" NRestarts)"
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
summary
