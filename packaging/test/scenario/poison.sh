#!/usr/bin/env bash
# One job kills its runner in each attempt while seven other jobs only sleep. Only this job
# ends as dead, with the reason poison. Runners belong to root, so only a job of root can
# kill them.
. "$(dirname "$0")/../lib/all.sh"

package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null
box sed -i 's/^allow_root_jobs *=.*/allow_root_jobs = true/' /etc/queuectl/runner.conf
box systemctl reload queuectl
q root config set workers 8 >/dev/null

sleepers() { local n; for n in 1 2 3 4 5 6 7; do echo "sleeper$1-$n"; done; }
innocent() {
	local id
	for id in $(sleepers "$1"); do
		job "$id" '"\(.id) \(.state) \(.reason) \(.user)"' | tee /dev/stderr | grep -Eq ' completed .* alice$' || return 1
	done
}
dead_again() { q root retry poison1 && within 40 dead_as_poison 1; }
dead_as_poison() { job_is "poison$1" '"\(.state) \(.reason)"' 'dead poison'; }

for round in 1 2 3; do
	for id in $(sleepers $round); do q alice enqueue --id "$id" --command 'sleep 2; id -un' >/dev/null; done
	within 5 in_state processing $(sleepers $round) >/dev/null
	service_pid=$(main_pid)
	q root enqueue --id "poison$round" --max-retries 20 --command 'kill -9 $PPID; sleep 60' >/dev/null
	promise "round $round: a job that always kills its runner ends as dead, with the reason poison" within 40 dead_as_poison $round
	promise "round $round: the seven other jobs of the runner complete" within 30 innocent $round
	promise "round $round: the service did not restart" same "$service_pid" "$(main_pid)"
	promise "round $round: a new job runs" same fine "$(q bob run -- echo fine)"
done
promise 'no process of the dead runners is left' within 10 box_sh '! pgrep -af "^sleep 60"'
promise 'no unit has failed' same '' "$(box systemctl list-units --failed --no-legend)"
promise 'after a retry, the job ends the same way' dead_again
summary
