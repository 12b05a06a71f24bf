package access

import (
	"cmp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// CheckRunnerMayRunAs returns an error if the runner would refuse jobs of a uid. It is called when a job is enqueued,
// so that the submitter gets the error immediately.
func (g *Guard) CheckRunnerMayRunAs(uid int) error {
	if !g.RunnerLocation.RunnersRunAsRoot() {
		return nil
	}
	if why := g.RunnerAccountPolicy.RefusalReason(uint32(uid)); why != "" {
		return queue.Errorf(queue.CodeDenied, "%s", why)
	}
	return nil
}

// CheckMayTypeIntoTerminal returns an error if the peer may not type on a job's terminal because the job runs as
// another user: what is typed takes effect with the rights of that user. The job may even be the peer's own job, if an
// admin has chosen another user for it.
func (g *Guard) CheckMayTypeIntoTerminal(p *control.Peer, j *queue.Job) error {
	if jobAccount := (worker.Account{UsesPerJobAccount: true}); g.RunnerLocation.HasExternalRunnersDir() &&
		jobAccount.JobUID(j) != p.UID &&
		!p.Right.Covers(control.RightAdmin) {
		return g.MissingRightError(p, "typing into the terminal of job "+j.ID+", which runs as another user,",
			control.RightAdmin)
	}
	return nil
}

// UserAndOwnerNames returns the name of the user that a job runs as. owner is the name of the user that enqueued the
// job, or "" if the job runs as that user.
func (g *Guard) UserAndOwnerNames(j *queue.Job) (runAsUser, owner string) {
	runAsUser = j.RunAsUser
	if runAsUser == "" || j.RunAsUID != nil {
		owner = g.UserName(j.UID)
		runAsUser = cmp.Or(runAsUser, owner)
	}
	if j.RunAsUID != nil && !j.State.HasEnded() && g.jobAccount.JobUID(j) != *j.RunAsUID {
		// With the present run_as, all jobs run as one account, even if another user was chosen for the job.
		runAsUser = g.jobAccount.UserName
	}
	return runAsUser, owner
}
