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
	// atOnce is how many jobs a verb on many is carried out on at once, so that they
	// share commits.
	atOnce = 64
	// lookStep is how many jobs are looked up under one place: each may be large.
	lookStep = 4
	// maxRefusal bounds the text of a refusal, in bytes of JSON: an answer may have as
	// many as there can be names.
	maxRefusal = 512
)

// eachNamed is each for jobs by their ids. It ends when its caller goes away.
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

// each carries a verb out on jobs and says on which, in the order asked. It ends when its
// caller goes away.
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

// look reads which jobs have these ids, and of each that there is none.
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

// batch is a verb that is being carried out on many jobs.
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

// on carries the verb out on a job, the i-th, whose look-up may have failed: beside
// others, as far as the caller may have things done side by side.
func (b *batch) on(i int, r store.Ref, err error) {
	if b.ctx.Err() != nil {
		return // which verdict is told
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

// verdict says on which jobs the verb was carried out, once that has ended; err is why it
// was not on all, nil if it was.
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
		case errors.Is(err, store.ErrMoved): // it is not meant any more
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
