package service

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

const (
	// atOnce is the number of jobs that a bulk operation changes concurrently, so that their changes share
	// commits.
	atOnce = 64
	// lookStep is the number of jobs that are read while holding one read slot. Each job may be large.
	lookStep = 4
	// maxRefusal is the maximum length of one job's error in bytes of JSON. A reply may contain an error for
	// each job in the request.
	maxRefusal = 512
)

// eachNamed is each for jobs that are given by their ids.
func (s *Service) eachNamed(ctx context.Context, method string, ids []string, do func(context.Context, *queue.Job) error) (control.BulkResult, error) {
	b := s.batch(ctx, method, ids, do)
	for done := 0; done < len(ids) && ctx.Err() == nil; {
		refs, errs, err := s.look(ctx, ids[done:min(done+lookStep, len(ids))])
		if err != nil {
			return b.verdict(err)
		}
		for i := range refs {
			b.on(done+i, refs[i], errs[i])
		}
		done += len(refs)
	}
	return b.verdict(ctx.Err())
}

// each applies an operation to jobs and returns the results in the order of the request. It stops when ctx
// ends, for example because the client disconnects.
func (s *Service) each(ctx context.Context, method string, refs []store.Ref, do func(context.Context, *queue.Job) error) (control.BulkResult, error) {
	ids := make([]string, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	b := s.batch(ctx, method, ids, do)
	for i := 0; i < len(refs) && ctx.Err() == nil; i++ {
		b.on(i, refs[i], nil)
	}
	return b.verdict(ctx.Err())
}

// look reads the jobs with these ids. errs contains the error of each id that does not exist.
func (s *Service) look(ctx context.Context, ids []string) (refs []store.Ref, errs []error, err error) {
	refs, errs = make([]store.Ref, len(ids)), make([]error, len(ids))
	peer := control.PeerFrom(ctx)
	err = s.shares.Do(ctx, control.One, func() error {
		for i, id := range ids {
			j, err := s.get(ctx, &peer, id)
			refs[i], errs[i] = store.Ref{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID}, err
		}
		return nil
	})
	return refs, errs, err
}

// batch is the state of a bulk operation on many jobs.
type batch struct {
	s      *Service
	ctx    context.Context
	peer   control.Peer
	method string
	do     func(context.Context, *queue.Job) error
	ids    []string
	errs   []error
	slots  chan struct{}
	calls  sync.WaitGroup
}

func (s *Service) batch(ctx context.Context, method string, ids []string, do func(context.Context, *queue.Job) error) *batch {
	return &batch{s: s, ctx: ctx, peer: control.PeerFrom(ctx), method: method, do: do, ids: ids, errs: make([]error, len(ids)), slots: make(chan struct{}, atOnce)}
}

// on applies the operation to the i-th job, unless err says that it could not be read. Operations run
// concurrently, within the user's limit of goroutines.
func (b *batch) on(i int, r store.Ref, err error) {
	if b.ctx.Err() != nil {
		return // verdict returns this error
	}
	j := &queue.Job{Seq: r.Seq, ID: r.ID, State: r.State, UID: r.UID}
	if err == nil {
		err = b.s.mayAct(&b.peer, b.method, j)
	}
	if b.errs[i] = err; err != nil {
		return
	}
	select {
	case b.slots <- struct{}{}:
	case <-b.ctx.Done():
		return
	}
	do := func() {
		defer func() { <-b.slots }()
		b.errs[i] = b.do(b.ctx, j)
	}
	end, ok := b.s.shares.Helper(b.ctx)
	if !ok {
		do()
		return
	}
	b.calls.Go(func() {
		defer end()
		do()
	})
}

// verdict waits for the operations and returns their results. err is the reason why not all jobs were
// handled; nil if all were.
func (b *batch) verdict(err error) (control.BulkResult, error) {
	b.calls.Wait()
	v := control.BulkResult{Done: []string{}, Refused: []control.Refusal{}}
	if err != nil {
		return v, err
	}
	for i, err := range b.errs {
		var refused *queue.Error
		switch {
		case err == nil:
			v.Done = append(v.Done, b.ids[i])
		case errors.Is(err, store.ErrMoved): // the job no longer matches the selection
		case errors.As(err, &refused) && refused.Code != queue.CodeOutcomeUnknown:
			v.Refused = append(v.Refused, refusalOf(b.ids[i], refused))
		default:
			return v, err
		}
	}
	return v, nil
}

// refusalOf returns the error about one job in the form in which a response lists it.
func refusalOf(id string, err *queue.Error) control.Refusal {
	text := queue.ClipJSON(strings.TrimSpace(err.Message), maxRefusal)
	return control.Refusal{ID: id, Code: err.Code, Field: queue.Clip(err.Field), Message: text}
}
