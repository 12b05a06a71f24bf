package service

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Enqueue implements control.API.
func (s *Service) Enqueue(ctx context.Context, p control.Enqueue) (control.Enqueued, error) {
	receipt, err := s.enqueue(ctx, []queue.Spec{p.Spec}, p.Key)
	if err != nil {
		return control.Enqueued{}, err
	}
	return control.Enqueued{ID: receipt.IDs[0], Seq: receipt.Seqs[0], Duplicate: receipt.Duplicate}, nil
}

// EnqueueBatch implements control.API.
func (s *Service) EnqueueBatch(ctx context.Context, p control.EnqueueBatch) (control.EnqueuedBatch, error) {
	if !p.Commit {
		return control.EnqueuedBatch{}, queue.Invalid("commit", "must be true: a batch is one request of at most %d jobs and %d bytes", queue.MaxBatch, control.MaxLine)
	}
	receipt, err := s.enqueue(ctx, p.Jobs, p.Key)
	return control.EnqueuedBatch{IDs: receipt.IDs, Duplicate: receipt.Duplicate}, err
}

func (s *Service) enqueue(ctx context.Context, specs []queue.Spec, key string) (store.Receipt, error) {
	c := s.config.Load()
	uid := control.PeerFrom(ctx).UID
	r := store.Request{Drafts: make([]queue.Job, len(specs)), UID: uid, Key: key, MaxPending: c.MaxPending}
	if len(key) > queue.MaxKey {
		return store.Receipt{}, queue.Invalid("key", "is %d bytes long; at most %d are taken", len(key), queue.MaxKey)
	}
	name := s.userName(uid)
	for i := range specs {
		j, err := queue.Resolve(&specs[i], c.Defaults())
		var fault *queue.Error
		if errors.As(err, &fault) && len(specs) > 1 {
			return store.Receipt{}, fault.At(i + 1)
		}
		if err != nil {
			return store.Receipt{}, err
		}
		j.UID, j.User = uid, name
		r.Drafts[i] = j
	}
	if key != "" {
		raw, err := json.Marshal(specs)
		if err != nil {
			return store.Receipt{}, err
		}
		r.Sum = sha256.Sum256(raw)
	}
	return s.store.Enqueue(ctx, r)
}

// userName is the name of a uid, or its number.
func (s *Service) userName(uid int) string {
	if name, ok := s.users.Load(uid); ok {
		return name.(string)
	}
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	s.users.Store(uid, name)
	return name
}

func (s *Service) view(j *queue.Job) control.Job {
	name := j.User
	if name == "" {
		name = s.userName(j.UID)
	}
	return control.ViewJob(j, control.View{Now: s.store.Now(), Order: s.store.Order(), Enqueued: s.store.Counts().Enqueued, User: name})
}

// List implements control.API.
func (s *Service) List(ctx context.Context, p control.List) (control.JobPage, error) {
	f := store.Filter{Labels: p.Label, Since: queue.Millis(p.Since), Limit: p.Limit}
	if p.Limit == 0 {
		f.Limit = 50
	}
	for _, name := range p.State {
		states, err := queue.ParseStates(name)
		if err != nil {
			return control.JobPage{}, err
		}
		f.States = append(f.States, states...)
	}
	if p.User != "" {
		uid, err := uidOf(p.User)
		if err != nil {
			return control.JobPage{}, err
		}
		f.UID = &uid
	}
	if p.Cursor != "" {
		before, err := strconv.ParseInt(p.Cursor, 10, 64)
		if err != nil || before <= 0 {
			return control.JobPage{}, queue.Invalid("cursor", "is not one that a list gave")
		}
		f.Before = before
	}
	return s.page(ctx, f)
}

func (s *Service) page(ctx context.Context, f store.Filter) (control.JobPage, error) {
	page, err := s.store.List(ctx, f)
	if err != nil {
		return control.JobPage{}, err
	}
	out := control.JobPage{Jobs: make([]control.Job, 0, len(page.Jobs))}
	for i, bytes := 0, 0; i < len(page.Jobs); i++ {
		j := &page.Jobs[i]
		if bytes += pageCost(j); bytes > maxPage && i > 0 {
			page.Next = page.Jobs[i-1].Seq
			break
		}
		out.Jobs = append(out.Jobs, s.view(j))
	}
	if page.Next != 0 {
		next := strconv.FormatInt(page.Next, 10)
		out.Next = &next
	}
	return out, nil
}

// maxPage bounds a page's text, in bytes, so that its line fits: JSON may write a
// byte as six.
const maxPage = control.MaxLine / 8

// pageCost is about how many bytes a job takes in a page.
func pageCost(j *queue.Job) int {
	n := 1024 + len(j.Command) + len(j.Cwd) + len(j.Error)
	for _, a := range j.Argv {
		n += len(a) + 4
	}
	for k, v := range j.Labels {
		n += len(k) + len(v) + 8
	}
	return n
}

func uidOf(name string) (int, error) {
	if u, err := user.Lookup(name); err == nil {
		name = u.Uid
	}
	uid, err := strconv.Atoi(name)
	if err != nil {
		return 0, queue.Invalid("user", "there is no user %q here", name)
	}
	return uid, nil
}

// Cancel implements control.API.
func (s *Service) Cancel(ctx context.Context, p control.Selection) (control.Verdict, error) {
	return s.each(ctx, p.Names(), func(ctx context.Context, j *queue.Job) error {
		uid := control.PeerFrom(ctx).UID
		for {
			// What runs is ended first: that need not wait for the disk.
			if _, err := s.pool.Cancel(ctx, j.Seq, uid); err != nil {
				return err
			}
			err := s.store.Cancel(ctx, j.Seq, uid)
			if !errors.Is(err, store.ErrLeased) {
				return err
			}
			if err := pause(ctx); err != nil { // claimed, and on its way to the pool
				return err
			}
		}
	})
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Retry implements control.API.
func (s *Service) Retry(ctx context.Context, p control.Selection) (control.Verdict, error) {
	return s.each(ctx, p.Names(), func(ctx context.Context, j *queue.Job) error {
		return s.revive(ctx, j, store.Revival{Seq: j.Seq, UID: control.PeerFrom(ctx).UID})
	})
}

func (s *Service) revive(ctx context.Context, j *queue.Job, r store.Revival) error {
	err := s.store.Retry(ctx, r)
	if errors.Is(err, store.ErrLeased) {
		return queue.Errorf(queue.CodeWrongState, "job %s is being run; cancel it first", j.ID)
	}
	return err
}

// DLQList implements control.API.
func (s *Service) DLQList(ctx context.Context, p control.List) (control.JobPage, error) {
	p.State = control.Texts{queue.Dead.String()}
	return s.List(ctx, p)
}

// DLQRetry implements control.API.
func (s *Service) DLQRetry(ctx context.Context, p control.DLQRetry) (control.Verdict, error) {
	if p.All == (len(p.IDs) > 0) {
		return control.Verdict{}, queue.Invalid("ids", "name dead jobs, or all; give one of them")
	}
	ids := p.IDs
	if p.All {
		var err error
		if ids, err = s.deadIDs(ctx); err != nil {
			return control.Verdict{}, err
		}
	}
	return s.each(ctx, ids, func(ctx context.Context, j *queue.Job) error {
		return s.revive(ctx, j, store.Revival{Seq: j.Seq, UID: control.PeerFrom(ctx).UID, DeadOnly: true, Timeout: (*time.Duration)(p.Timeout)})
	})
}

// DLQClear implements control.API.
func (s *Service) DLQClear(ctx context.Context, p control.Sure) (control.Removed, error) {
	if !p.Yes {
		return control.Removed{}, queue.Invalid("yes", "must be true: dead jobs and their history are removed for good")
	}
	ids, err := s.deadIDs(ctx)
	if err != nil {
		return control.Removed{}, err
	}
	verdict, err := s.each(ctx, ids, func(ctx context.Context, j *queue.Job) error {
		if j.State != queue.Dead {
			return queue.Errorf(queue.CodeWrongState, "job %s is %s", j.ID, j.State)
		}
		return s.store.Remove(ctx, j.Seq, control.PeerFrom(ctx).UID)
	})
	return control.Removed{Removed: len(verdict.Done)}, err
}

// deadIDs lists all dead jobs, the oldest first.
func (s *Service) deadIDs(ctx context.Context) (ids []string, err error) {
	f := store.Filter{States: []queue.State{queue.Dead}, Limit: store.MaxPage}
	for {
		page, err := s.store.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			ids = append(ids, page.Jobs[i].ID)
		}
		if f.Before = page.Next; f.Before == 0 {
			for i, k := 0, len(ids)-1; i < k; i, k = i+1, k-1 {
				ids[i], ids[k] = ids[k], ids[i]
			}
			return ids, nil
		}
	}
}

// atOnce is how many jobs a verb on many is carried out on at once, so that they
// share commits.
const atOnce = 64

// each carries a verb out on jobs and says on which, in the order asked.
func (s *Service) each(ctx context.Context, ids []string, do func(context.Context, *queue.Job) error) (control.Verdict, error) {
	v := control.Verdict{Done: []string{}, Refused: []control.Refusal{}}
	errs := make([]error, len(ids))
	slots := make(chan struct{}, atOnce)
	var calls sync.WaitGroup
	for i, id := range ids {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			j, err := s.store.Get(ctx, id)
			if err == nil {
				err = do(ctx, &j)
			}
			errs[i] = err
		})
	}
	calls.Wait()
	for i, err := range errs {
		var refused *queue.Error
		switch {
		case err == nil:
			v.Done = append(v.Done, ids[i])
		case errors.As(err, &refused) && refused.Code != queue.CodeOutcomeUnknown:
			v.Refused = append(v.Refused, control.Refusal{ID: ids[i], Code: refused.Code, Message: strings.TrimSpace(refused.Error())})
		default:
			return v, err
		}
	}
	return v, nil
}
