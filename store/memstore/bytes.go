package memstore

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// estimateJobBytes returns roughly how many bytes a store with a database needs for a job. The exact number
// depends on how the store encodes texts.
func estimateJobBytes(j *queue.Job) int64 {
	raw, err := json.Marshal(&j.ExecutionSettings)
	if err != nil {
		return store.QuotaBytesPerJob
	}
	dependencies := j.ParentCount
	if j.DependsOn != nil {
		dependencies = len(j.DependsOn)
	}
	return int64(len(raw)) + store.QuotaBytesPerJob + int64(dependencies)*store.QuotaBytesPerDependency
}

// estimateScheduleBytes returns roughly how many bytes a store with a database needs for a schedule.
func estimateScheduleBytes(s *store.Schedule) int64 {
	raw, err := json.Marshal(&s.JobDraft)
	if err != nil {
		return store.QuotaBytesPerJob
	}
	return int64(len(raw)+len(s.SpecJSON)) + store.QuotaBytesPerJob
}

// countUserBytes returns how many bytes a user's jobs and schedules use. stagedBytes is the size of the jobs in
// the user's batches, which is not part of usedBytes.
func (s *Store) countUserBytes(uid int) (usedBytes, stagedBytes int64) {
	for _, j := range s.jobs {
		if j.UID == uid {
			usedBytes += estimateJobBytes(&j.Job) + j.attemptRecordBytes + j.OutputBytes
		}
	}
	for _, schedule := range s.schedules {
		if schedule.OwnerUID == uid {
			usedBytes += estimateScheduleBytes(&schedule.Schedule)
		}
	}
	for _, b := range s.batches {
		if b.uid != uid {
			continue
		}
		for _, frame := range b.frames {
			for i := range frame {
				stagedBytes += estimateJobBytes(&frame[i])
			}
		}
	}
	return usedBytes, stagedBytes
}

// checkUserByteLimit returns an error if a user would hold more than maxUserBytes bytes after addedBytes are added. A
// limit of 0 means unlimited.
func (s *Store) checkUserByteLimit(uid int, addedBytes, maxUserBytes int64) error {
	if maxUserBytes <= 0 || addedBytes <= 0 {
		return nil
	}
	if n, staged := s.countUserBytes(uid); n+staged+addedBytes > maxUserBytes {
		return store.NewQuotaError(n+staged, maxUserBytes, addedBytes)
	}
	return nil
}

// sumJobBytes returns the sum of estimateJobBytes of the given jobs.
func sumJobBytes(jobs []queue.Job) (totalBytes int64) {
	for i := range jobs {
		totalBytes += estimateJobBytes(&jobs[i])
	}
	return totalBytes
}

// makeRoomForAttempt makes room for the output and the record of an ended attempt. maxUserBytes is the byte limit of
// the job's user; 0 means unlimited. If the output does not fit, it removes the output from the settlement, the report
// about the end. If the record does not fit either and the job has store.MinKeptAttemptRecords records, it deletes the
// oldest one.
func (s *Store) makeRoomForAttempt(j *job, settlement *store.Settlement, maxUserBytes int64) {
	size, recordBytes := store.AttemptOutputBytes(&settlement.Attempt),
		store.AttemptRecordBytes(settlement, j.StartedAttempts)
	if !settlement.Decision.RecordsAttempt || s.makeRoomForBytes(j.UID, size+recordBytes, maxUserBytes) {
		return
	}
	a := &settlement.Attempt
	if a.OutputFileRef != "" {
		s.deletableOutputs = append(s.deletableOutputs, a.OutputFileRef)
		queue.TrySend(s.dueChangeHints, struct{}{})
	}
	if size > 0 {
		a.Output, a.OutputFileRef, a.Result, a.OutputBytes = nil, "", nil, queue.OutputRemovedByQuota
	}
	if s.makeRoomForBytes(j.UID, recordBytes, maxUserBytes) || j.StartedAttempts < store.MinKeptAttemptRecords {
		return
	}
	s.removeOutput(j, 0, queue.OutputRemovedByQuota)
	oldest := &j.attempts[0]
	j.attemptRecordBytes -= int64(len(oldest.Error)+len(oldest.ResultError)) + store.QuotaBytesPerAttempt
	j.attempts = j.attempts[1:]
}

// makeRoomForBytes reports whether a user may hold addedBytes more than now without exceeding maxUserBytes; 0 means
// unlimited. If necessary, it removes outputs and inputs of the user's jobs. It removes nothing if that would not be
// enough, or if store.QuotaRemovalLimit does not allow it.
func (s *Store) makeRoomForBytes(uid int, addedBytes, maxUserBytes int64) bool {
	if maxUserBytes <= 0 || addedBytes <= 0 {
		return true
	}
	needed := s.userExcessBytes(uid, maxUserBytes-addedBytes)
	if needed <= 0 {
		return true
	}
	outputs := int64(0)
	for _, j := range s.jobs {
		if j.UID == uid {
			outputs += j.OutputBytes
		}
	}
	if needed > outputs {
		return false
	}
	list, enough := s.removableParts(uid, needed, store.QuotaRemovalLimit(s.examinedPartCount))
	s.examinedPartCount += len(list)
	if !enough {
		return false
	}
	s.removeParts(list)
	queue.TrySend(s.dueChangeHints, struct{}{})
	return true
}

// StoredBytesOfUser returns how many bytes the jobs, schedules and batches of a user hold.
func (s *Store) StoredBytesOfUser(uid int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, staged := s.countUserBytes(uid)
	return n + staged
}

// UsersOverStoredBytes lists the users whose bytes exceed a limit, most bytes first.
func (s *Store) UsersOverStoredBytes(maxBytes int64) (usersOverLimit []store.UserStoredBytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := map[int]int64{}
	for _, j := range s.jobs {
		users[j.UID] = 0
	}
	for _, b := range s.batches {
		users[b.uid] = 0
	}
	for _, schedule := range s.schedules {
		users[schedule.OwnerUID] = 0
	}
	for uid := range users {
		if n, staged := s.countUserBytes(uid); n+staged > maxBytes {
			usersOverLimit = append(usersOverLimit, store.UserStoredBytes{UID: uid, StoredBytes: n + staged})
		}
	}
	store.SortByStoredBytes(usersOverLimit)
	return usersOverLimit
}

// RemovableUserBytes implements store.Store.
func (s *Store) RemovableUserBytes(ctx context.Context, uid int, _ int64) (removableBytes int64, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, j := range s.jobs {
			if j.UID != uid {
				continue
			}
			removableBytes += j.OutputBytes
			removableBytes += j.removableInputBytes()
		}
		return nil
	})
	return removableBytes, err
}

// TrimUserData implements store.Store.
func (s *Store) TrimUserData(ctx context.Context, uid int, maxUserBytes int64) (more bool, err error) {
	return false, s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		list, _ := s.removableParts(uid, s.userExcessBytes(uid, maxUserBytes), math.MaxInt)
		s.removeParts(list)
		return nil
	})
}

// removableJobPart is a part of a job that can be removed: the output of an attempt, or the job's input if attemptIndex
// is -1.
type removableJobPart struct {
	job          *job
	attemptIndex int
}

// removableParts lists removable parts of a user's jobs. It stops when their sizes add up to neededBytes, or when the
// list contains maxParts parts. isEnough reports whether the sizes add up to neededBytes.
func (s *Store) removableParts(uid int, neededBytes int64, maxParts int) (parts []removableJobPart, isEnough bool) {
	add := func(j *job, attempt int, bytes int64) {
		if bytes > 0 && neededBytes > 0 && len(parts) < maxParts {
			parts = append(parts, removableJobPart{j, attempt})
			neededBytes -= bytes
		}
	}
	for _, j := range s.jobsByEndTime() {
		if j.UID != uid {
			continue
		}
		add(j, -1, j.removableInputBytes())
		for i := range j.attempts {
			add(j, i, j.attempts[i].OutputBytes)
		}
	}
	return parts, neededBytes <= 0
}

// removeParts removes the given parts of jobs, to free space for other data of the user.
func (s *Store) removeParts(parts []removableJobPart) {
	for _, part := range parts {
		if part.attemptIndex < 0 {
			part.job.removeLargeInput()
		} else {
			s.removeOutput(part.job, part.attemptIndex, queue.OutputRemovedByQuota)
		}
	}
}

// removableInputBytes returns how many bytes the removal of the job's input would free.
func (j *job) removableInputBytes() int64 {
	if !store.StateLosesLongInput(j.State) {
		return 0
	}
	stripped := job{Job: copyJob(j.Job)}
	stripped.removeLargeInput()
	return estimateJobBytes(&j.Job) - estimateJobBytes(&stripped.Job)
}

// jobsByEndTime lists all jobs: first the jobs that have not ended, then the ended jobs in the order in which they
// ended.
func (s *Store) jobsByEndTime() []*job {
	list := s.jobsBySeq()
	slices.SortStableFunc(list, func(a, b *job) int { return cmp.Compare(a.endedAt(), b.endedAt()) })
	return list
}

// endedAt returns the time when the job ended; 0 if it has not ended.
func (j *job) endedAt() queue.UnixMillis {
	if !j.State.HasEnded() {
		return 0
	}
	return j.EndedAt
}

// userExcessBytes returns by how many bytes a user's data exceeds maxUserBytes.
func (s *Store) userExcessBytes(uid int, maxUserBytes int64) int64 {
	n, staged := s.countUserBytes(uid)
	return n + staged - maxUserBytes
}

// removeLargeInput removes the environment and the standard input of a job if they are longer than
// MaxKeptInputBytes.
func (j *job) removeLargeInput() {
	raw, err := json.Marshal(queue.ExecutionSettings{Env: j.Env, Stdin: j.Stdin})
	none, err2 := json.Marshal(queue.ExecutionSettings{})
	if err != nil || err2 != nil || len(raw)-len(none) <= store.MaxKeptInputBytes {
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
