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

// Looks for jobs that were handed in by a database.
// See docs/decisions/0033.
const (
	submissionStep  = 100              // jobs of each role in one look
	submissionEvery = 5 * time.Second  // between two looks, and up to half as long again, though nothing hints at new ones
	submissionAgain = time.Second      // after one that failed
	submissionWait  = 30 * time.Second // for one job
)

// takeSubmissions has jobs that were handed in by a database's roles be enqueued by the users that the settings name for
// them, as if these had asked for it, until ctx ends. Each is forgotten with its job, so none is enqueued twice.
func (s *Service) takeSubmissions(ctx context.Context, server *control.Server) {
	inbox, has := s.store.(store.Inbox)
	if !has {
		return
	}
	t := &taking{s: s, inbox: inbox, server: server, roles: map[string]*takenRole{}, ended: make(chan struct{}, 1)}
	defer t.beside.Wait()
	hint := inbox.Arrivals(ctx)
	roles, told := "", false // as the database knows them
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
		if err != nil && ctx.Err() == nil && said != err.Error() { // it may be for long
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

// taking takes what was handed in, of each role one after another and of none at another one's pace.
type taking struct {
	s      *Service
	inbox  store.Inbox
	server *control.Server
	beside sync.WaitGroup
	ended  chan struct{} // pokes: something was taken, and there may be more

	mu    sync.Mutex
	roles map[string]*takenRole
}

// takenRole is how it stands with a role: what cannot be taken now has all of it wait.
type takenRole struct {
	busy bool
	held string // why it waits, "" if it does not
}

// waits reports whether some role has to be looked at again soon.
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

// limit is how many jobs of a role are read: of one that waits the first alone.
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

// look begins to take what there is.
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

// take takes jobs of a role, up to the first that cannot be taken now.
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

// passing reports whether what a job was refused for may be over later.
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

// submit enqueues one job, as its role's user.
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
		if none := accounts.ErrNone(""); !errors.As(err, &none) || s.hasOthers() { // who may know the user
			code = queue.CodeUnavailable
		}
		return queue.Errorf(code, "user %q of the database role %q: %v", name, queue.Clip(job.Role), err)
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

// hasOthers reports whether other services of the queue run.
func (s *Service) hasOthers() bool { return s.cluster != nil && s.cluster.HasOthers() }
