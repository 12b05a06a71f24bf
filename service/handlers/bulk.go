package handlers

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/store"
)

// bulk applies an operation to many jobs.
type bulk struct {
	shares  *control.UserLimits
	store   store.Store
	filters *filters
	guard   *access.Guard
	reader  *jobReader
	rights  *access.Rights
}

const (
	// maxParallelBulk is the number of jobs that a bulk operation changes concurrently, so that their changes
	// share commits.
	maxParallelBulk = 64
	// readStep is the number of jobs that are read while holding one read slot. Each job may be large.
	readStep = 4
	// maxRefusal is the maximum length of one job's error in bytes of JSON. A reply may contain an error for
	// each job in the request.
	maxRefusal = 512
)

// bulkByID is like bulkByRef, but first looks up the jobs by their ids.
func (h *bulk) bulkByID(ctx context.Context, method string, ids []string,
	do func(context.Context, *queue.Job) error) (control.BulkResult, error) {
	b := h.newBulk(ctx, method, ids, do)
	for done := 0; done < len(ids) && ctx.Err() == nil; {
		refs, errs, err := h.reader.readRefs(ctx, ids[done:min(done+readStep, len(ids))])
		if err != nil {
			return b.results(err)
		}
		for i := range refs {
			b.apply(done+i, refs[i], errs[i])
		}
		done += len(refs)
	}
	return b.results(ctx.Err())
}

// bulkByRef applies an operation to jobs and returns the results in the order of the request. It stops when
// ctx ends, for example because the client disconnects.
func (h *bulk) bulkByRef(ctx context.Context, method string, refs []store.Ref,
	do func(context.Context, *queue.Job) error) (control.BulkResult, error) {
	ids := make([]string, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	b := h.newBulk(ctx, method, ids, do)
	for i := 0; i < len(refs) && ctx.Err() == nil; i++ {
		b.apply(i, refs[i], nil)
	}
	return b.results(ctx.Err())
}

// readRefs reads references to the jobs with these ids. For each id that does not exist, errs contains an
// error at the same index.
func (r *jobReader) readRefs(ctx context.Context, ids []string) (refs []store.Ref, errs []error, err error) {
	refs, errs = make([]store.Ref, len(ids)), make([]error, len(ids))
	peer := control.PeerFrom(ctx)
	err = r.shares.Do(ctx, control.ClassOne, func() error {
		for i, id := range ids {
			j, err := r.guard.Get(ctx, &peer, id)
			refs[i], errs[i] = store.Ref{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID}, err
		}
		return nil
	})
	return refs, errs, err
}

// bulkOperation is the state of a bulk operation on many jobs.
type bulkOperation struct {
	h      *bulk
	ctx    context.Context
	peer   control.Peer
	method string
	do     func(context.Context, *queue.Job) error
	ids    []string
	errs   []error
	slots  chan struct{}
	calls  sync.WaitGroup
}

func (h *bulk) newBulk(ctx context.Context, method string, ids []string,
	do func(context.Context, *queue.Job) error) *bulkOperation {
	return &bulkOperation{h: h, ctx: ctx, peer: control.PeerFrom(ctx), method: method, do: do, ids: ids,
		errs: make([]error, len(ids)), slots: make(chan struct{}, maxParallelBulk)}
}

// apply applies the operation to the i-th job. If err is not nil, the job could not be read, and apply
// records that error instead. Operations run concurrently, within the user's limit of goroutines.
func (b *bulkOperation) apply(i int, r store.Ref, err error) {
	if b.ctx.Err() != nil {
		return // the results method returns this error
	}
	j := &queue.Job{Seq: r.Seq, ID: r.ID, State: r.State, UID: r.UID}
	if err == nil {
		err = b.h.guard.MayAct(&b.peer, b.method, j)
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
	end, ok := b.h.shares.Helper(b.ctx)
	if !ok {
		do()
		return
	}
	b.calls.Go(func() {
		defer end()
		do()
	})
}

// results waits for the operations and returns their results. err is the reason why not all jobs were
// handled; nil if all were.
func (b *bulkOperation) results(err error) (control.BulkResult, error) {
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
		case errors.Is(err, store.ErrStateChanged): // the job no longer matches the selection
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
