//go:build unix

package service

// Commands that messages suggest.
const (
	joinGroup    = "sudo usermod -aG %s %s, then log in again"
	makeAccounts = "groupadd, useradd"
	endHung      = "if the runner is stopped (ps -o stat= -p %d prints T): kill -CONT %[1]d; if the runner hangs: kill -KILL %[1]d (its jobs are then treated as lost)"
	findHung     = "find the runner's pid with: ps -ef"
	runAsAdvice  = "to run each job as the user who enqueued it, set run_as = \"submitter\" in %[3]s"
)
