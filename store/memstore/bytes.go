package memstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// stored is about how many bytes an engine stores of a job: engines differ in how they write its texts.
func stored(j *queue.Job) int64 {
	raw, err := json.Marshal(&j.Execution)
	if err != nil {
		return store.JobBytes
	}
	return int64(len(raw)) + store.JobBytes
}

// scheduleBytes returns about how many bytes an engine stores of a schedule.
func scheduleBytes(s *store.Schedule) int64 {
	raw, err := json.Marshal(&s.Draft)
	if err != nil {
		return store.JobBytes
	}
	return int64(len(raw)+len(s.Spec)) + store.JobBytes
}

// held returns how many bytes the jobs and schedules of a user use, and how many the jobs in the user's batches do.
func (s *Store) held(uid int) (n, staged int64) {
	for _, j := range s.jobs {
		if j.UID == uid {
			n += stored(&j.Job) + j.Outputs
		}
	}
	for _, one := range s.schedules {
		if one.UID == uid {
			n += scheduleBytes(&one.Schedule)
		}
	}
	for _, b := range s.batches {
		if b.uid != uid {
			continue
		}
		for _, frame := range b.frames {
			for i := range frame {
				staged += stored(&frame[i])
			}
		}
	}
	return n, staged
}

// admitBytes refuses jobs of a user, or more bytes of them, that would have the user's jobs hold too much.
func (s *Store) admitBytes(uid int, more, most int64) error {
	if most <= 0 || more <= 0 {
		return nil
	}
	if n, staged := s.held(uid); n+staged+more > most {
		return store.QuotaExceeded(n+staged, most, more)
	}
	return nil
}

// storedAll is how many bytes these jobs take.
func storedAll(list []queue.Job) (n int64) {
	for i := range list {
		n += stored(&list[i])
	}
	return n
}

// UserBytes returns how many bytes the jobs of a user hold.
func (s *Store) UserBytes(uid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, staged := s.held(uid)
	return n + staged
}

// UsersOver lists the users whose jobs hold more than keep bytes, those that hold most first.
func (s *Store) UsersOver(keep int64) (list []store.UserBytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[int]int64{}
	for _, j := range s.jobs {
		all[j.UID] = 0
	}
	for _, b := range s.batches {
		all[b.uid] = 0
	}
	for _, one := range s.schedules {
		all[one.UID] = 0
	}
	for uid := range all {
		if n, staged := s.held(uid); n+staged > keep {
			list = append(list, store.UserBytes{UID: uid, Bytes: n + staged})
		}
	}
	store.SortUserBytes(list)
	return list
}

// RemovableBytes implements store.Store.
func (s *Store) RemovableBytes(ctx context.Context, uid int) (bytes int64, err error) {
	err = s.read(ctx, func() error {
		for _, j := range s.jobs {
			if j.UID != uid || !j.State.Ended() {
				continue
			}
			bytes += j.Outputs
			if trimmed := (job{Job: copyJob(j.Job)}); store.LosesInput(j.State) {
				trimmed.removeInput()
				bytes += stored(&j.Job) - stored(&trimmed.Job)
			}
		}
		return nil
	})
	return bytes, err
}

// TrimUser implements store.Store.
func (s *Store) TrimUser(ctx context.Context, uid int, keep int64) (more bool, err error) {
	var ended []*job
	err = s.update(ctx, func(queue.Millis) error {
		for _, j := range s.all() {
			if j.UID == uid && j.State.Ended() {
				ended = append(ended, j)
			}
		}
		slices.SortStableFunc(ended, func(a, b *job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
		return nil
	})
	for _, j := range ended {
		over := int64(0)
		err = errors.Join(err, s.update(ctx, func(queue.Millis) error {
			over = s.over(uid, keep)
			if over > 0 && store.LosesInput(j.State) {
				j.removeInput()
				over = s.over(uid, keep)
			}
			return nil
		}))
		if err != nil || over <= 0 {
			return false, err
		}
		err = s.trim(ctx, max(0, j.Outputs-over), queue.OutputOverQuota, func(of *job) bool { return of == j }, func(_ *job, a *queue.Attempt) queue.Millis { return queue.Millis(a.N) })
	}
	return false, err
}

// over returns how many bytes a user uses beyond keep.
func (s *Store) over(uid int, keep int64) int64 {
	n, staged := s.held(uid)
	return n + staged - keep
}

// removeInput removes a long environment and standard input.
func (j *job) removeInput() {
	raw, err := json.Marshal(queue.Execution{Env: j.Env, Stdin: j.Stdin})
	none, err2 := json.Marshal(queue.Execution{})
	if err != nil || err2 != nil || len(raw)-len(none) <= store.KeptInput {
		return
	}
	if len(j.Env) > 0 {
		j.InputRemoved |= queue.InputEnv
	}
	if j.Stdin != "" {
		j.InputRemoved |= queue.InputStdin
	}
	j.Env, j.Stdin = nil, ""
}
