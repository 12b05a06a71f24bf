#!/usr/bin/env bash
# One job or user that takes too much memory, too many processes or too many places in the
# queue does not harm others.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
q root config set workers 6 >/dev/null
q root config set kill_after 1s >/dev/null

# --- the order in which the kernel kills processes if memory runs out
promise 'the kernel kills other processes before the service if memory runs out' same '-500' "$(unit "$service" OOMScoreAdjust)"
q alice enqueue --id sleeping --command 'exec sleep 500' >/dev/null
within 5 in_state processing sleeping >/dev/null
one=$(runner_units | head -n 1)
promise '... and the service before the runner' same '-900 continue' "$(unit "$one" OOMScoreAdjust) $(unit "$one" OOMPolicy)"
scores() { box cat "/proc/$(main_pid)/oom_score_adj" "/proc/$(runner_pids | head -n 1)/oom_score_adj" "/proc/$(job sleeping .pid)/oom_score_adj" | xargs; }
# In a container, root may be unable to lower a score; systemd then leaves it at 0.
promise '... and jobs before all other processes' says '^(-500 -900|0 0) 200$' scores
promise '... including processes that a job forks immediately' same '200 200' "$(q alice run -- sh -c 'cat /proc/self/oom_score_adj & cat /proc/self/oom_score_adj; wait' | xargs)"
promise 'the runner has no task limit and a high limit of file descriptors' says '^(infinity|[0-9]{6,}) 65536$' echo "$(unit "$one" TasksMax) $(unit "$one" LimitNOFILE)"
promise 'the service has a memory limit' same 536870912 "$(unit "$service" MemoryMax)"
# 256 MiB plus 512 KiB for each worker, if its own group has the controller; otherwise the runner warns.
own_memory() {
	local bound
	bound=$(box_sh "find /sys/fs/cgroup -path '*queuectl-runner*/supervisor/memory.max' -exec cat {} +")
	[ "$bound" = $(((256 << 20) + 6 * (512 << 10))) ] || { [ -z "$bound" ] && journal "$one" | grep "could not limit the runner's own memory"; }
}
promise '... and the runner has its own memory limit, which does not include its jobs' own_memory

# --- memory: the job dies, the runner does not
enforced=$(box_sh 'grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null || test -e /sys/fs/cgroup/memory/memory.limit_in_bytes && echo yes || true')
if [ "$enforced" = yes ]; then
	box systemctl set-property --runtime "$one" MemoryMax=120M MemorySwapMax=0
	runner=$(runner_pids | head -n 1)
	q alice enqueue --id glutton --max-retries 0 --command 'exec perl -e '"'"'$x = "a" x 400_000_000; sleep 30'"'" >/dev/null
	promise 'a job that takes all memory is ended' within 20 in_state dead glutton
	promise '... and the reason is oom_killed' job_is glutton '"\(.reason) \(.signal)"' 'oom_killed 9'
	promise '... the runner is still running' same "$runner" "$(runner_pids | head -n 1)"
	promise '... another job of the same runner is still running' job_is sleeping .state processing
	promise '... and new jobs run' same fine "$(q bob run -- echo fine)"
	box systemctl set-property --runtime "$one" MemoryMax=infinity
else
	note 'skipped: this machine has no memory controller'
fi

# --- a fork bomb
box systemctl set-property --runtime "$one" TasksMax=300
runner=$(runner_pids | head -n 1)
q alice enqueue --id bomb --max-retries 0 --timeout 3s --kill-after 500ms --shell '/bin/bash -c' --command 'bomb() { bomb | bomb & }; bomb; sleep 60' >/dev/null
within 5 in_state processing bomb >/dev/null || true
sleep 1
q bob enqueue --id neighbour --command 'echo neighbour' >/dev/null
promise 'a fork bomb ends with its job' within 40 in_state dead bomb
promise '... none of its processes is left' within 10 box_sh '! pgrep -u alice -f bomb'
promise '... the runner is still running' same "$runner" "$(runner_pids | head -n 1)"
promise '... a job that could not start in the meantime runs later' within 20 in_state completed neighbour
promise '... and another job of the same runner is still running' job_is sleeping .state processing
box systemctl set-property --runtime "$one" TasksMax=infinity

# --- ending a job's process tree does not end later jobs
next_are_well() {
	local n
	for n in 1 2 3 4 5 6 7 8; do same "fine $n" "$(q bob run --max-retries 0 -- echo fine $n)" || return 1; done
}
q root config set workers 3 >/dev/null
q alice enqueue --id leaves-1 --command 'setsid sleep 4321 & exit 0' >/dev/null
q alice enqueue --id leaves-2 --command 'setsid sleep 4321 & exit 0' >/dev/null
promise 'the background processes of a job are ended' within 10 ended leaves-1 leaves-2
promise '... and later jobs of the same workers run' next_are_well
q alice enqueue --id late --timeout 500ms --max-retries 0 --command 'trap "" TERM; while :; do sleep 1; done' >/dev/null
promise 'a job that ignores SIGTERM is killed after kill_after' within 10 job_is late .reason timed_out
promise '... and later jobs of the same workers run' next_are_well
q root config set workers 6 >/dev/null

# --- one user floods the queue
box_sh "sed -i '/max_pending_per_user\|max_running_per_user/d' /etc/queuectl/queuectl.toml"
promise 'quotas per user can be set' q root config set max_pending_per_user 50
q root config set max_running_per_user 2 >/dev/null
flood() {
	local n
	for n in $(seq 80); do printf '{"command":"sleep 0.3"}\n'; done >"$box_dir/root/home/alice/flood"
	as alice sh -c 'n=0; while [ $n -lt 80 ]; do queuectl enqueue -q "sleep 0.3" >/dev/null 2>>refused || { echo $?; exit 0; }; n=$((n+1)); done; echo none'
}
promise 'a user who enqueues too many jobs is rejected' same 5 "$(flood)"
promise '... and the message names the setting' box grep -q max_pending_per_user /home/alice/refused
promise '... and other users are not' same fine "$(q bob run -- echo fine)"
at_most_two() { local n; n=$(q root list --state processing --user alice --json | jq length); echo "$n"; [ "$n" -le 2 ]; }
q root cancel sleeping >/dev/null
promise '... and at most two jobs of this user run at the same time' at_most_two
promise '... and a file with too many jobs is rejected as a whole' refuses as alice queuectl enqueue --file flood
summary
