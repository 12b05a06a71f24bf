#!/usr/bin/env bash
# Users try links, paths and races to make the service or the root runner open, read, change
# or remove files of others. No attempt succeeds.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
q root config set workers 6 >/dev/null

secret=canary-$RANDOM$RANDOM
box_sh "echo $secret > /root/secret; chmod 600 /root/secret; mkdir -p /root/bin; printf '#!/bin/sh\necho $secret\n' > /root/bin/prog; chmod 755 /root/bin/prog"
as_sh bob "echo $secret > secret; mkdir bin; cp /usr/bin/id bin/prog; chmod 600 secret"
q bob enqueue --id bobs --command "head -c 300000 /dev/zero | tr '\\0' x; while :; do echo $secret; sleep 0.05; done" >/dev/null
within 5 in_state processing bobs >/dev/null
q bob enqueue --id large --command "echo $secret; head -c 300000 /dev/zero | tr '\\0' x" >/dev/null
within 5 in_state completed large >/dev/null
bobs_pid=$(job bobs .pid)
runner_pid=$(runner_pids | head -n 1)
service_pid=$(main_pid)
bobs_output=$(box_sh "grep -l $secret /var/lib/queuectl-runner/output/* | head -n 1") # its name is an unpredictable number
promise 'the output file of bob'"'"'s job exists where this test expects it' box grep -q "$secret" "$bobs_output"
as_sh alice 'mkdir own; echo own > own/file; mkfifo fifo; ln -s loop2 loop1; ln -s loop1 loop2
	ln -s /root rootdir; ln -s /var/lib/queuectl state; ln -s /var/lib/queuectl-runner runners; ln -s /root/secret s1; ln -s /home/bob/secret s2; ln -s /etc/shadow s3; ln -s /proc/self/fd/0 s4; ln -s /var/lib/queuectl/queuectl.db s5
	mkdir gone; ln -s /home/alice/own/file good'
# fingerprint prints the owners, modes and contents that must not change. A FIFO for progress
# is left out: it stays for the next command of the same account.
fingerprint() {
	box_sh 'stat -c "%n %U:%G %a %F" /var/lib/queuectl /var/lib/queuectl-runner /run/queuectl /run/queuectl-runner /run/queuectl/* /run/queuectl-runner/* /root /root/secret /etc/queuectl /etc/queuectl/* /home/bob /home/bob/secret; sha256sum /root/secret /home/bob/secret /etc/queuectl/*; find /var/lib/queuectl /var/lib/queuectl-runner \( -type l -o -user alice \) ! \( -type p -path "*/jobs/*/*.progress" \) -print'
}
before=$(fingerprint)

tricks=0
# These functions run a job of alice: in a directory, with a file as standard input, or with a program.
in_dir() { as alice queuectl run --max-retries 0 --cwd "$1" -- sh -c 'pwd -P; ls; cat secret' ; }
fed() { as alice queuectl run --max-retries 0 --stdin-file "$1" -- cat; }
program() { as alice queuectl run --max-retries 0 -- "$@"; }

# trick TEXT COMMAND... holds if the command fails and does not show the secret.
trick() {
	local text=$1
	shift
	tricks=$((tricks + 1))
	promise "$text" no_use "$@"
}
no_use() {
	local seen code=0
	seen=$("$@" 2>&1) || code=$?
	printf 'code %s: %s\n' "$code" "$seen" | head -c 2000
	[ "$code" != 0 ] && ! grep -qE "$secret|^root:[^ ]*:|SQLite format" <<<"$seen"
}

# --- cwd
for dir in /root /home/bob /home/alice/rootdir /home/alice/state /home/alice/runners /var/lib/queuectl /var/lib/queuectl-runner /proc/1/root/root /proc/1/cwd/root "/proc/$runner_pid/cwd" "/proc/$bobs_pid/cwd" "/proc/$runner_pid/fd" /home/alice/own/file /home/alice/fifo /home/alice/loop1 /home/alice/own/../../bob '../bob' /nowhere; do
	trick "cwd $dir" in_dir "$dir"
done
as_sh alice 'chmod 000 gone'
trick 'cwd that its owner cannot enter' in_dir /home/alice/gone

# --- stdin_file
for file in /root/secret /home/bob/secret /etc/shadow /home/alice/s1 /home/alice/s2 /home/alice/s3 /home/alice/s5 /home/alice/loop1 /home/alice/own "/proc/$runner_pid/environ" "/proc/$service_pid/environ" "/proc/$bobs_pid/fd/1" "/proc/1/environ" /var/lib/queuectl/queuectl.db "/proc/$runner_pid/mem" /proc/self/environ /proc/self/mem /proc/thread-self/environ /run/queuectl/queuectl.sock /run/queuectl-runner/spawn.sock own/../../bob/secret /dev/kmsg /dev/mem; do
	trick "stdin_file $file" fed "$file"
done
as_sh alice 'ln /etc/shadow hard 2>/dev/null || cp /dev/null hard; ln /home/bob/secret hard2 2>/dev/null || true'
no_secret() { local seen; seen=$("$@" 2>&1) || true; ! grep -E "$secret|^root:[^ ]*:" <<<"$seen"; }
tricks=$((tricks + 1))
promise 'a hard link as stdin_file shows no secret' no_secret fed /home/alice/hard
tricks=$((tricks + 1))
q alice enqueue --id pipe --max-retries 0 --timeout 2s --stdin-file /home/alice/fifo --command cat >/dev/null
promise 'a pipe without a writer as stdin_file does not delay other jobs' same here "$(q bob run -- echo here)"
promise '... and its job ends at its timeout' within 10 in_state dead pipe

# The open files of the runner: its journal and the pipes of other users' jobs.
descriptors() {
	local n
	for n in $(seq 0 40); do
		printf '{"id":"fd%d","command":"cat","stdin_file":"/proc/%s/fd/%d","max_retries":0,"timeout":1}\n' "$n" "$runner_pid" "$n"
		printf '{"id":"own-fd%d","command":"cat","stdin_file":"/proc/self/fd/%d","max_retries":0,"timeout":1}\n' "$n" "$n"
	done >"$box_dir/root/home/alice/fds"
	as alice queuectl enqueue --file fds -q >/dev/null
	within 40 none_waits || return 1
	for n in $(seq 0 40); do q root logs "fd$n" "own-fd$n"; done >"$box_dir/fds" 2>&1
	cat "$box_dir/fds"
	! grep -q "$secret" "$box_dir/fds"
}
none_waits() { same '[]' "$(q root list --user alice --state waiting --json | jq -c .)" && same '[]' "$(q root list --user alice --state processing --json | jq -c .)"; }
tricks=$((tricks + 82))
promise '82 file descriptors of the runner as stdin_file show no secret' descriptors

# --- programs, shells, names
trick 'a program in a directory of root' program /root/bin/prog
trick 'a program in a directory of bob' program /home/bob/bin/prog
trick 'a PATH with a directory of root' as alice env PATH=/root/bin:/usr/bin:/bin queuectl run --max-retries 0 -- prog
trick 'a shell of root' as alice queuectl run --max-retries 0 --shell /root/bin/prog 'x'
for id in ../x ..%2f x/../../y "/abs" '.' 'a b' "$(printf 'a\tb')" "-rf"; do
	[ "$id" = x/../../y ] && continue # a valid ID, because the service never uses an ID as a path
	trick "a job named '$id'" as alice queuectl enqueue --id="$id" --command true
done
tricks=$((tricks + 1))
promise 'the job ID x/../../y is not used as a path' as alice queuectl run --id x/../../y -- sh -c 'head -c 200000 /dev/zero | tr "\0" y'

# --- the directories and sockets themselves
for line in 'ls /var/lib/queuectl' 'ls /var/lib/queuectl-runner' 'cat /var/lib/queuectl/queuectl.db' 'touch /var/lib/queuectl-runner/x' 'ln -s /etc /var/lib/queuectl-runner/x' 'rm -f /run/queuectl/queuectl.sock' 'mv /run/queuectl/queuectl.sock /run/queuectl/x' 'ln -s /tmp/x /run/queuectl/x' 'touch /run/queuectl-runner/x' 'mv /run/queuectl /run/x' 'ln /var/lib/queuectl/queuectl.db own/db' 'chmod 666 /run/queuectl/queuectl.sock' 'echo allow_root_jobs = true >> /etc/queuectl/runner.conf' 'mv /etc/queuectl/runner.conf /etc/queuectl/x' 'cat /proc/'"$runner_pid"'/fd/*' 'find /var/lib/queuectl-runner/ -type f | grep .' "cat $bobs_output"; do
	trick "by hand: $line" as alice sh -c "$line"
	trick "as a job: $line" as alice queuectl run --max-retries 0 -- sh -c "$line"
done

# --- races: a link that alternates between a file of the user and a file of another user
cat >"$box_dir/flip.pl" <<'PERL'
my ($link, $a, $b) = @ARGV; my $end = time + 60;
while (time < $end) { for my $to ($a, $b) { unlink "$link.new"; symlink $to, "$link.new"; rename "$link.new", $link } }
PERL
box_put "$box_dir/flip.pl" /usr/lib/flip.pl
as alice perl /usr/lib/flip.pl flip-file /home/alice/own/file /root/secret &
flip1=$!
as alice perl /usr/lib/flip.pl flip-file2 /home/alice/own/file /home/bob/secret &
flip2=$!
as alice perl /usr/lib/flip.pl flip-dir /home/alice/own /root &
flip3=$!
race() {
	local n id
	for n in $(seq 40); do
		printf '{"id":"race-f%d","command":"cat","stdin_file":"/home/alice/flip-file","max_retries":0}\n' "$n"
		printf '{"id":"race-g%d","command":"cat","stdin_file":"/home/alice/flip-file2","max_retries":0}\n' "$n"
		printf '{"id":"race-d%d","command":"pwd -P; cat secret","cwd":"/home/alice/flip-dir","max_retries":0}\n' "$n"
	done >"$box_dir/root/home/alice/races"
	as alice queuectl enqueue --file races -q >/dev/null
	as alice queuectl wait $(for n in $(seq 40); do echo race-f$n race-g$n race-d$n; done) >/dev/null 2>&1 || true
	for id in $(seq 40); do q root logs race-f$id race-g$id race-d$id; done >"$box_dir/races" 2>&1
	sort "$box_dir/races" | uniq -c | sort -rn | head -n 20
	! grep -E "$secret|^/root" "$box_dir/races" && grep -q own "$box_dir/races"
}
tricks=$((tricks + 3))
promise '120 jobs whose stdin_file or cwd changes while they start show no secret' race
kill "$flip1" "$flip2" "$flip3" 2>/dev/null || true
wait "$flip1" "$flip2" "$flip3" 2>/dev/null || true
box pkill -f flip.pl || true

# --- environment
tricks=$((tricks + 3))
preload() {
	local seen
	seen=$(as alice queuectl run --max-retries 0 --env LD_PRELOAD=/home/alice/own/file --env HOME=/root --env USER=root -- sh -c 'id -un; cat /root/secret' 2>&1) || true
	echo "$seen"
	grep -q alice <<<"$seen" && ! grep -q "$secret" <<<"$seen"
}
promise 'LD_PRELOAD, HOME and USER in the environment do not change the account of a job' preload
for name in QUEUECTL_JOB_ID QUEUECTL_COOKIE; do
	forged() { no_secret as alice queuectl run --max-retries 0 --env "$name=bobs" -- sh -c 'queuectl logs ${QUEUECTL_JOB_ID:-bobs}'; }
	promise "a forged $name gives no access to another user's job" forged
done

note "$tricks tricks"
promise 'all owners and modes are unchanged' same "$before" "$(fingerprint)"
promise 'bob'"'"'s job is still the same process' job_is bobs .pid "$bobs_pid"
promise '... and so are the service and the runner' same "$service_pid $runner_pid" "$(main_pid) $(runner_pids | head -n 1)"
summary
