package access

import (
	"cmp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// CheckMayRun returns an error if the runner would refuse jobs of a uid. It is called when a job is enqueued,
// so that the submitter gets the error immediately.
func (g *Guard) CheckMayRun(uid int) error {
	if !g.RunnerLocation.OwnedByRoot() {
		return nil
	}
	if why := g.RunnerPolicy.RefusalReason(uint32(uid)); why != "" {
		return queue.Errorf(queue.CodeDenied, "%s", why)
	}
	return nil
}

// CheckMayTypeIntoTerminal returns an error if the peer may not type on a job's terminal because the job runs
// as another user: the text takes effect with the rights of that user. This can be the peer's own job, if an
// admin has chosen another user for it.
func (g *Guard) CheckMayTypeIntoTerminal(p *control.Peer, j *queue.Job) error {
	if jobAccount := (worker.Account{RunsAsJobAccount: true}); g.RunnerLocation.IsExternal() &&
		jobAccount.RunsAs(j) != p.UID &&
		!p.Right.Covers(control.RightAdmin) {
		return g.Rights.RefusalError(p, "typing into the terminal of job "+j.ID+", which runs as another user,",
			control.RightAdmin)
	}
	return nil
}

// UserAndOwnerNames returns the name of the user that a job runs as. owner is the name of the user that
// enqueued the job, or "" if this is the same user.
func (g *Guard) UserAndOwnerNames(j *queue.Job) (runAsUser, owner string) {
	runAsUser = j.User
	if runAsUser == "" || j.AsUID != nil {
		owner = g.Owners.UserName(j.UID)
		runAsUser = cmp.Or(runAsUser, owner)
	}
	if j.AsUID != nil && !j.State.Ended() && g.Owners.jobAccount.RunsAs(j) != *j.AsUID {
		// With the present run_as, the user that was chosen for the job does not apply.
		runAsUser = g.Owners.jobAccount.User
	}
	return runAsUser, owner
}
