package access

import (
	"cmp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/worker"
)

// RunAs decides as which users jobs run.
type RunAs struct {
	RunnerLocation runner.Location
	Owners         *Owners
	Rights         *Rights
	RunnerPolicy   *launcher.Accounts // the policy that decides as which accounts root's runners run jobs
}

// CheckMayRun returns an error if the runner would not run jobs of a uid. It is called at enqueue, so that the
// submitter gets the error immediately.
func (r *RunAs) CheckMayRun(uid int) error {
	if !r.RunnerLocation.OwnedByRoot() {
		return nil
	}
	if why := r.RunnerPolicy.RefusalReason(uint32(uid)); why != "" {
		return queue.Errorf(queue.CodeDenied, "%s", why)
	}
	return nil
}

// CheckMayType returns an error if the peer may not type into a job's terminal because the job runs as another
// user. Typed text is executed with the rights of that user. Even a job that belongs to the peer may run as
// another user, if an admin has chosen that user.
func (r *RunAs) CheckMayType(p *control.Peer, j *queue.Job) error {
	if each := (worker.Account{RunsAsJobAccount: true}); r.RunnerLocation.External() && each.RunsAs(j) != p.UID &&
		!p.Right.Covers(control.RightAdmin) {
		return r.Rights.Refuse(p, "typing into the terminal of job "+j.ID+", which runs as another user,", control.RightAdmin)
	}
	return nil
}

// UserAndOwnerNames returns the name of the user that a job runs as. If a different user may have
// enqueued the job, UserAndOwnerNames also returns the name of that owner.
func (r *RunAs) UserAndOwnerNames(j *queue.Job) (user, owner string) {
	user = j.User
	if user == "" || j.AsUID != nil {
		owner = r.Owners.UserName(j.UID)
		user = cmp.Or(user, owner)
	}
	if j.AsUID != nil && !j.State.Ended() && r.Owners.account.RunsAs(j) != *j.AsUID {
		// The job's user was chosen while run_as had another value, so it does not apply.
		user = r.Owners.account.User
	}
	return user, owner
}
