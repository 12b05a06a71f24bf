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
	maxJobsPerRole = 100 // maximum number of jobs of one role in one poll
	// pollInterval is the minimum time between two polls if no notification arrives. A random time of up to
	// half of pollInterval is added.
	pollInterval   = 5 * time.Second
	retryDelay     = time.Second      // delay after a failed poll
	enqueueTimeout = 30 * time.Second // timeout for one job
)

// Run enqueues the jobs that database roles have submitted, until ctx ends. It enqueues each job as the user
// that the settings name for the role. The transaction that enqueues a job also removes its submission, so no
// job is enqueued twice.
func Run(ctx context.Context, d *parts.Dependencies, server *control.Server) {
	inbox, has := d.Store.(store.Inbox)
	if !has {
		return
	}
	t := &poller{Dependencies: d, inbox: inbox, server: server, roles: map[string]roleState{},
		enqueuedSignal: make(chan struct{}, 1)}
	defer t.enqueues.Wait()
	hint := inbox.SubmissionHints(ctx)
	// the roles that were last sent to the database, and whether any were sent
	roles, rolesSent := "", false
	lastError := ""
	for ctx.Err() == nil {
		wait := pollInterval + rand.N(pollInterval/2)
		set := d.Settings.Current()
		err := error(nil)
		if !rolesSent || set.StoreRoles != roles {
			if err = inbox.SetRoles(ctx, slices.Sorted(maps.Keys(set.RoleUsers()))); err == nil {
				roles, rolesSent = set.StoreRoles, true
			}
		}
		if err == nil {
			err = t.poll(ctx, set.RoleUsers())
		}
		// Log an error that lasts only once.
		if err != nil && ctx.Err() == nil && lastError != err.Error() {
			lastError = err.Error()
			d.Log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "error", err)
		}
		if err != nil || t.anyDelayed() {
			wait = retryDelay
		}
		select {
		case <-ctx.Done():
		case <-hint:
		case <-d.Settings.RolesChanged:
		case <-t.enqueuedSignal:
		case <-time.After(wait):
		}
	}
}

// poller enqueues submitted jobs. It enqueues the jobs of one role in order. The roles do not wait for each
// other.
type poller struct {
	*parts.Dependencies
	inbox          store.Inbox
	server         *control.Server
	enqueues       sync.WaitGroup
	enqueuedSignal chan struct{} // gets a value after jobs were enqueued, because more may be waiting

	mu    sync.Mutex
	roles map[string]roleState // guarded by mu
}

// roleState is the state of one role. If one job of the role cannot be enqueued now, for example because the
// queue is full, the role is delayed: its later jobs wait too.
type roleState struct {
	inProgress bool   // jobs of the role are being enqueued
	delayCause string // the error that delays the role; "" if it is not delayed
}

// anyDelayed reports whether at least one role is delayed. If so, Run polls again soon.
func (p *poller) anyDelayed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.roles {
		if !r.inProgress && r.delayCause != "" {
			return true
		}
	}
	return false
}

// readLimit returns how many submitted jobs of a role the next poll reads: 1 for a delayed role, and 0 while
// earlier jobs of the role are being enqueued.
func (p *poller) readLimit(role string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r := p.roles[role]; {
	case r.inProgress:
		return 0
	case r.delayCause != "":
		return 1
	}
	return maxJobsPerRole
}

// poll reads submitted jobs and starts a goroutine for each role to enqueue them. users maps roles to users.
func (p *poller) poll(ctx context.Context, users map[string]string) error {
	list, err := p.inbox.Submissions(ctx, p.readLimit)
	if err != nil {
		return err
	}
	byRole := map[string][]store.Submission{}
	for _, job := range list {
		byRole[job.Role] = append(byRole[job.Role], job)
	}
	for role, jobs := range byRole {
		p.mu.Lock()
		delayCause := p.roles[role].delayCause
		p.roles[role] = roleState{inProgress: true, delayCause: delayCause}
		p.mu.Unlock()
		p.enqueues.Go(func() { p.enqueueInOrder(ctx, role, delayCause, jobs, users) })
	}
	return nil
}

// enqueueInOrder enqueues jobs of a role. It stops at the first job that cannot be enqueued now.
// lastDelayCause is the error of the previous poll, which need not be logged again; "" if there was none.
func (p *poller) enqueueInOrder(ctx context.Context, role, lastDelayCause string, jobs []store.Submission,
	users map[string]string) {
	enqueued, delay := 0, error(nil)
	for i := range jobs {
		job := &jobs[i]
		err := p.submit(ctx, job, users)
		if err != nil && !isTransient(err) {
			p.Log.Warn("refused an invalid job that was enqueued through the database", "role", job.Role, "job", job.ID,
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
	p.roles[role] = state
	p.mu.Unlock()
	if delay != nil && ctx.Err() == nil && lastDelayCause != state.delayCause {
		p.Log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "role", role, "error", delay)
	}
	if enqueued > 0 {
		queue.TrySend(p.enqueuedSignal, struct{}{})
	}
}

// isTransient reports whether the request that failed with err may succeed later.
func isTransient(err error) bool {
	var e *queue.Error
	return !errors.As(err, &e) || slices.Contains([]queue.Code{queue.CodeUnavailable, queue.CodeQueueFull,
		queue.CodeNoSpace, queue.CodeOutcomeUnknown, queue.CodeInternal}, e.Code)
}

// submit enqueues one job as the user of its role. users maps roles to users.
func (p *poller) submit(ctx context.Context, job *store.Submission, users map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	name, known := users[job.Role]
	if !known {
		return queue.Errorf(queue.CodeDenied, "the database role %q is not listed in the setting store_roles",
			queue.Clip(job.Role))
	}
	peer, err := p.Directory.PeerNamed(name)
	if err != nil {
		code := queue.CodeDenied
		if none := accounts.NoAccountError(""); !errors.As(err, &none) || p.Owners.HasOtherNodes() {
			// Return a transient error, so that the job is tried again: the look-up may have failed only for
			// now, or another node may know the user.
			code = queue.CodeUnavailable
		}
		return queue.Errorf(code, "database role %q: %v; create it, or change store_roles", queue.Clip(job.Role), err)
	}
	var spec queue.Spec
	if err := spec.UnmarshalJSON(job.Spec); err != nil {
		return err
	}
	peer.SubmissionNumber = job.Number
	client := p.server.ClientAs(peer)
	defer client.Close()
	_, err = client.Enqueue(ctx, control.Enqueue{Spec: spec})
	return err
}
