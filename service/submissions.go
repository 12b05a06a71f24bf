package service

import (
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
	submissionStep  = 100              // jobs of one look
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
	roles := ""
	for ctx.Err() == nil {
		wait := submissionEvery + rand.N(submissionEvery/2)
		set := s.config.Load()
		err := error(nil)
		if set.StoreRoles != roles {
			if err = inbox.SetRoles(ctx, slices.Sorted(maps.Keys(set.RoleUsers()))); err == nil {
				roles = set.StoreRoles
			}
		}
		more := false
		if err == nil {
			more, err = s.takeStep(ctx, inbox, server, set.RoleUsers())
		}
		switch {
		case err != nil && ctx.Err() == nil:
			s.log.Warn("jobs that a database has handed in wait", "error", err)
			wait = submissionAgain
		case more:
			continue
		}
		select {
		case <-ctx.Done():
		case <-hint:
		case <-time.After(wait):
		}
	}
}

// takeStep takes some, and reports whether there may be more. An error is of none of them: what waits is taken later.
func (s *Service) takeStep(ctx context.Context, inbox store.Inbox, server *control.Server, users map[string]string) (more bool, err error) {
	list, err := inbox.Submissions(ctx, submissionStep)
	for i := range list {
		if err != nil || ctx.Err() != nil {
			return false, err
		}
		refused := s.submit(ctx, server, &list[i], users)
		switch {
		case refused == nil:
			err = inbox.Taken(ctx, list[i].N)
		case passing(refused):
			return false, refused
		default:
			s.log.Warn("a job that a database has handed in is none", "role", list[i].Role, "job", list[i].ID, "error", refused)
			err = inbox.Refuse(ctx, list[i].N, refused.Error())
		}
	}
	return len(list) == submissionStep, err
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
