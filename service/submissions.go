package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Looks for jobs that were handed in by a database.
const (
	submissionStep  = 100              // jobs of each role in one look
	submissionEvery = 5 * time.Second  // between two looks, and up to half as long again, though nothing hints at new ones
	submissionAgain = time.Second      // after one that failed
	submissionWait  = 30 * time.Second // for one job
)

// takeSubmissions has jobs that were handed in by a database's roles be enqueued by the users that the settings name for
// them, as if these had asked for it, until ctx ends. Each has its id from the start, so none is enqueued twice.
func (s *Service) takeSubmissions(ctx context.Context, server *control.Server) {
	inbox, has := s.store.(store.Inbox)
	if !has {
		return
	}
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
		more := false
		if err == nil {
			more, err = s.takeStep(ctx, inbox, server, set.RoleUsers())
		}
		switch {
		case more:
			continue
		case err != nil && ctx.Err() == nil:
			if said != err.Error() { // it may be for long
				said = err.Error()
				s.log.Warn("jobs that a database has handed in wait", "error", err)
			}
			wait = submissionAgain
		}
		select {
		case <-ctx.Done():
		case <-hint:
		case <-s.roles:
		case <-time.After(wait):
		}
	}
}

// takeStep takes some, and reports whether there may be more. What cannot be taken now has all of its role wait, and of no other
// one; the error is the first of that.
func (s *Service) takeStep(ctx context.Context, inbox store.Inbox, server *control.Server, users map[string]string) (more bool, err error) {
	list, err := inbox.Submissions(ctx, submissionStep)
	if err != nil {
		return false, err
	}
	waits, of := map[string]bool{}, map[string]int{}
	var held error
	for i := range list {
		job := &list[i]
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if waits[job.Role] {
			continue
		}
		refused := s.submit(ctx, server, job, users)
		switch {
		case refused == nil:
			err = inbox.Taken(ctx, job.N)
		case passing(refused):
			waits[job.Role], held = true, cmp.Or(held, refused)
			continue
		default:
			s.log.Warn("a job that a database has handed in is none", "role", job.Role, "job", job.ID, "error", refused)
			err = inbox.Refuse(ctx, job.N, refused.Error())
		}
		if err != nil {
			return false, err
		}
		of[job.Role]++
		more = more || of[job.Role] == submissionStep
	}
	return more, held
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
		return queue.Errorf(queue.CodeDenied, "the role %q is not in store_roles", queue.Clip(job.Role))
	}
	peer, err := s.peerNamed(name)
	if err != nil {
		return queue.Errorf(queue.CodeDenied, "the user %q of the role %q: %v", name, queue.Clip(job.Role), err)
	}
	var spec queue.Spec
	if err := spec.UnmarshalJSON(job.Spec); err != nil {
		return err
	}
	client := server.As(peer)
	defer client.Close()
	if _, err = client.Enqueue(ctx, control.Enqueue{Spec: spec}); !errors.Is(err, queue.ErrExists) {
		return err
	}
	if j, known := s.store.Get(ctx, job.ID); known == nil && j.UID == peer.UID { // it was taken, and that was not noted
		return nil
	}
	return err
}
