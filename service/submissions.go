package service

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
	"github.com/queuectl/queuectl/store"
)

// Polling for jobs that database roles have submitted. See docs/decisions/0033.
const (
	submissionStep = 100 // maximum number of jobs of each role in one poll
	// Interval between polls without a hint, extended by a random part of up to half of it.
	submissionEvery = 5 * time.Second
	submissionAgain = time.Second      // delay after a failed poll
	submissionWait  = 30 * time.Second // timeout for one job
)

// takeSubmissions enqueues the jobs that database roles have submitted, until ctx ends. It enqueues each as
// the user that the settings name for the role, as if that user had called enqueue. The transaction that
// enqueues a job removes its submission, so no job is enqueued twice.
func (s *Service) takeSubmissions(ctx context.Context, server *control.Server) {
	inbox, has := s.store.(store.Inbox)
	if !has {
		return
	}
	t := &taking{s: s, inbox: inbox, server: server, roles: map[string]*takenRole{}, ended: make(chan struct{}, 1)}
	defer t.beside.Wait()
	hint := inbox.Arrivals(ctx)
	roles, told := "", false // the roles as last sent to the database
	said := ""
	for ctx.Err() == nil {
		wait := submissionEvery + rand.N(submissionEvery/2)
		set := s.config.Load()
		err := error(nil)
		if !told || set.StoreRoles != roles {
			if err = inbox.SetRoles(ctx, slices.Sorted(maps.Keys(set.RoleUsers()))); err == nil {
				roles, told = set.StoreRoles, true
			}
		}
		if err == nil {
			err = t.look(ctx, set.RoleUsers())
		}
		if err != nil && ctx.Err() == nil && said != err.Error() { // log once, since the error may last long
			said = err.Error()
			s.log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "error", err)
		}
		if err != nil || t.waits() {
			wait = submissionAgain
		}
		select {
		case <-ctx.Done():
		case <-hint:
		case <-s.roles:
		case <-t.ended:
		case <-time.After(wait):
		}
	}
}

// taking processes the submissions. It processes those of one role in order, and different roles
// independently.
type taking struct {
	s      *Service
	inbox  store.Inbox
	server *control.Server
	beside sync.WaitGroup
	ended  chan struct{} // wake-up: jobs were enqueued, and there may be more

	mu    sync.Mutex
	roles map[string]*takenRole
}

// takenRole is the state of one role. If a job cannot be enqueued now, the role's later jobs wait too.
type takenRole struct {
	busy bool
	held string // the error that delays the role; "" if it is not delayed
}

// waits reports whether a role is delayed and must be retried soon.
func (t *taking) waits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.roles {
		if !r.busy && r.held != "" {
			return true
		}
	}
	return false
}

// limit returns how many jobs of a role to read next. It returns 1 for a delayed role, and 0 for one that is
// being processed.
func (t *taking) limit(role string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch r := t.roles[role]; {
	case r == nil:
		return submissionStep
	case r.busy:
		return 0
	case r.held != "":
		return 1
	}
	return submissionStep
}

// look reads submissions and starts to process them.
func (t *taking) look(ctx context.Context, users map[string]string) error {
	list, err := t.inbox.Submissions(ctx, t.limit)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		role := list[0].Role
		n := slices.IndexFunc(list, func(job store.Submission) bool { return job.Role != role })
		if n < 0 {
			n = len(list)
		}
		jobs := list[:n]
		list = list[n:]
		t.mu.Lock()
		r := t.roles[role]
		if r == nil {
			r = &takenRole{}
			t.roles[role] = r
		}
		r.busy = true
		t.mu.Unlock()
		t.beside.Go(func() { t.take(ctx, r, jobs, users) })
	}
	return nil
}

// take enqueues jobs of a role, up to the first that cannot be enqueued now.
func (t *taking) take(ctx context.Context, r *takenRole, jobs []store.Submission, users map[string]string) {
	taken, held := 0, error(nil)
	for i := range jobs {
		job := &jobs[i]
		err := t.s.submit(ctx, t.server, job, users)
		if err != nil && !passing(err) {
			t.s.log.Warn("refused an invalid job that was enqueued through the database", "role", job.Role, "job", job.ID, "error", err)
			err = t.inbox.Refuse(ctx, job.N, err.Error())
		}
		if held = err; err != nil || ctx.Err() != nil {
			break
		}
		taken++
	}
	t.mu.Lock()
	was := r.held
	r.busy, r.held = false, ""
	if held != nil {
		r.held = held.Error()
	}
	t.mu.Unlock()
	if held != nil && ctx.Err() == nil && was != held.Error() {
		t.s.log.Warn("jobs enqueued through the database cannot be accepted yet; trying again", "role", jobs[0].Role, "error", held)
	}
	if taken > 0 {
		select {
		case t.ended <- struct{}{}:
		default:
		}
	}
}

// passing reports whether an error may disappear later.
func passing(err error) bool {
	var e *queue.Error
	if !errors.As(err, &e) {
		return true
	}
	switch e.Code {
	case queue.CodeUnavailable, queue.CodeFull, queue.CodeNoSpace, queue.CodeOutcomeUnknown, queue.CodeInternal:
		return true
	}
	return false
}

// submit enqueues one job as the user of its role.
func (s *Service) submit(ctx context.Context, server *control.Server, job *store.Submission, users map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, submissionWait)
	defer cancel()
	name, known := users[job.Role]
	if !known {
		return queue.Errorf(queue.CodeDenied, "the database role %q is not listed in the setting store_roles", queue.Clip(job.Role))
	}
	peer, err := s.peerNamed(name)
	if err != nil {
		code := queue.CodeDenied
		if none := accounts.ErrNone(""); !errors.As(err, &none) || s.hasOthers() {
			// Another node may know the user.
			code = queue.CodeUnavailable
		}
		return queue.Errorf(code, "user %q, who owns the jobs of the database role %q: %v", name, queue.Clip(job.Role), err)
	}
	var spec queue.Spec
	if err := spec.UnmarshalJSON(job.Spec); err != nil {
		return err
	}
	peer.Submission = job.N
	client := server.As(peer)
	defer client.Close()
	_, err = client.Enqueue(ctx, control.Enqueue{Spec: spec})
	return err
}

// hasOthers reports whether other nodes of the queue are running.
func (s *Service) hasOthers() bool { return s.cluster != nil && s.cluster.HasOthers() }
