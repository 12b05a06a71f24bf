// Package submissions enqueues jobs that database users (roles) have submitted with an SQL function. Each job
// is enqueued as the operating system user that the settings name for the role.
//
// Start with Run.
package submissions

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/store"
)

// These constants control how the service polls for jobs that database roles have submitted. See
// docs/decisions/0033.
const (
	maxJobsReadPerRole = 100 // maximum number of jobs of one role in one poll
	// minPollInterval is the minimum time between two polls if no notification arrives. A random time of up to half of
	// minPollInterval is added to it.
	minPollInterval      = 5 * time.Second
	failedPollRetryDelay = time.Second      // delay after a failed poll
	enqueueTimeout       = 30 * time.Second // timeout for one job
)

// Run enqueues the jobs that database roles have submitted, until ctx ends. It enqueues each job as the user
// that the settings name for the role. The transaction that enqueues a job also removes its submission, so no
// job is enqueued twice.
func Run(ctx context.Context, d *parts.Dependencies, server *control.Server) {
	inbox, has := d.Store.(store.Inbox)
	if !has {
		return
	}
	t := &submissionPoller{Dependencies: d, inbox: inbox, server: server, stateByRole: map[string]roleState{},
		jobsEnqueued: make(chan struct{}, 1)}
	defer t.runningEnqueues.Wait()
	hint := inbox.SubmissionHints(ctx)
	// roles is the list of roles that was last sent to the database; rolesSent reports whether any list was sent
	roles, rolesSent := "", false
	lastError := ""
	for ctx.Err() == nil {
		wait := minPollInterval + rand.N(minPollInterval/2)
		set := d.Settings.CurrentConfig()
		err := error(nil)
		if !rolesSent || set.StoreRoleUsers != roles {
			if err = inbox.SetAcceptedDatabaseRoles(ctx, slices.Sorted(maps.Keys(set.UsersByStoreRole()))); err == nil {
				roles, rolesSent = set.StoreRoleUsers, true
			}
		}
		if err == nil {
			err = t.poll(ctx, set.UsersByStoreRole())
		}
		// Log an error that persists only once.
		if err != nil && ctx.Err() == nil && lastError != err.Error() {
			lastError = err.Error()
			d.Log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "error", err)
		}
		if err != nil || t.isAnyRoleDelayed() {
			wait = failedPollRetryDelay
		}
		select {
		case <-ctx.Done():
		case <-hint:
		case <-d.Settings.StoreRolesChanged:
		case <-t.jobsEnqueued:
		case <-time.After(wait):
		}
	}
}

// submissionPoller enqueues submitted jobs. It enqueues the jobs of one role in order. Roles do not wait for each
// other.
type submissionPoller struct {
	*parts.Dependencies
	inbox           store.Inbox
	server          *control.Server
	runningEnqueues sync.WaitGroup
	jobsEnqueued    chan struct{} // gets a value after jobs were enqueued, because more may be waiting

	mu          sync.Mutex
	stateByRole map[string]roleState // guarded by mu
}

// roleState is the state of one role. If a job of the role cannot be enqueued now, for example because the queue is
// full, the role is delayed: the role's later jobs wait too.
type roleState struct {
	isEnqueuing bool   // jobs of the role are being enqueued
	delayCause  string // the error that delays the role; "" if it is not delayed
}

// isAnyRoleDelayed reports whether at least one role is delayed. If a role is delayed, Run polls again soon.
func (p *submissionPoller) isAnyRoleDelayed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.stateByRole {
		if !r.isEnqueuing && r.delayCause != "" {
			return true
		}
	}
	return false
}

// roleReadLimit returns how many submitted jobs of a role the next poll reads: 1 for a delayed role, and 0 while
// earlier jobs of the role are being enqueued.
func (p *submissionPoller) roleReadLimit(role string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r := p.stateByRole[role]; {
	case r.isEnqueuing:
		return 0
	case r.delayCause != "":
		return 1
	}
	return maxJobsReadPerRole
}

// poll reads submitted jobs and starts a goroutine for each role to enqueue the jobs of that role. userByRole maps
// roles to users.
func (p *submissionPoller) poll(ctx context.Context, userByRole map[string]string) error {
	list, err := p.inbox.Submissions(ctx, p.roleReadLimit)
	if err != nil {
		return err
	}
	byRole := map[string][]store.Submission{}
	for _, job := range list {
		byRole[job.DatabaseRole] = append(byRole[job.DatabaseRole], job)
	}
	for role, jobs := range byRole {
		p.mu.Lock()
		delayCause := p.stateByRole[role].delayCause
		p.stateByRole[role] = roleState{isEnqueuing: true, delayCause: delayCause}
		p.mu.Unlock()
		p.runningEnqueues.Go(func() { p.enqueueSubmissionsInOrder(ctx, role, delayCause, jobs, userByRole) })
	}
	return nil
}

// enqueueSubmissionsInOrder enqueues jobs of a role. It stops at the first job that cannot be enqueued now.
// lastDelayCause is the error that delayed the role at the previous poll, or "". If the error is the same again, it is
// not logged.
func (p *submissionPoller) enqueueSubmissionsInOrder(ctx context.Context, role, lastDelayCause string,
	submissions []store.Submission, userByRole map[string]string) {
	enqueued, delay := 0, error(nil)
	for i := range submissions {
		job := &submissions[i]
		err := p.enqueueSubmission(ctx, job, userByRole)
		if err != nil && !isTransientError(err) {
			p.Log.Warn("refused an invalid job that was enqueued through the database", "role", job.DatabaseRole, "job",
				job.JobID,
				"error", err)
			err = p.inbox.RejectSubmission(ctx, job.Number, err.Error())
		}
		if delay = err; err != nil || ctx.Err() != nil {
			break
		}
		enqueued++
	}
	var state roleState
	if delay != nil {
		state.delayCause = delay.Error()
	}
	p.mu.Lock()
	p.stateByRole[role] = state
	p.mu.Unlock()
	if delay != nil && ctx.Err() == nil && lastDelayCause != state.delayCause {
		p.Log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "role", role, "error", delay)
	}
	if enqueued > 0 {
		queue.TrySend(p.jobsEnqueued, struct{}{})
	}
}

// isTransientError reports whether the request that failed with err may succeed later.
func isTransientError(err error) bool {
	var e *queue.Error
	return !errors.As(err, &e) || slices.Contains([]queue.ErrorCode{queue.CodeUnavailable, queue.CodeQueueFull,
		queue.CodeNoSpace, queue.CodeOutcomeUnknown, queue.CodeInternal}, e.Code)
}

// enqueueSubmission enqueues one job as the user of its role. userByRole maps roles to users.
func (p *submissionPoller) enqueueSubmission(ctx context.Context, submission *store.Submission,
	userByRole map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	name, known := userByRole[submission.DatabaseRole]
	if !known {
		return queue.Errorf(queue.CodeDenied, "the database role %q is not listed in the setting store_roles",
			queue.ClipForMessage(submission.DatabaseRole))
	}
	peer, err := p.UserDirectory.PeerByName(name)
	if err != nil {
		code := queue.CodeDenied
		if none := accounts.NoAccountError(""); !errors.As(err, &none) || p.Owners.HasOtherNodes() {
			// Return a transient error, so that the job is tried again: the look-up may have failed only this time, or another
			// node may know the user.
			code = queue.CodeUnavailable
		}
		return queue.Errorf(code, "database role %q: %v; create it, or change store_roles",
			queue.ClipForMessage(submission.DatabaseRole), err)
	}
	var spec queue.Spec
	if err := spec.UnmarshalJSON(submission.SpecJSON); err != nil {
		return err
	}
	peer.InboxRowNumber = submission.Number
	client := p.server.InProcessClientAs(peer)
	defer client.Close()
	_, err = client.Enqueue(ctx, control.EnqueueParams{JobSpec: spec})
	return err
}
