package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// This file makes room for data that a user's jobs produce.
//
// A request is rejected if it would take a user above max_bytes_per_user. But the record and the output of an
// attempt cannot be rejected when it ends, and neither can the hook of an ended job. So the transaction
// removes old outputs and inputs of the same user. If that is not enough, the output is not kept, or the hook
// is not created.
//
// Example: a user may hold 10 MB and holds 9.5 MB, and an attempt that printed 1 MB ends. The user's oldest
// outputs are removed until 9 MB are left. If the 9.5 MB belong to waiting jobs, nothing can be removed, and
// the attempt is recorded without its output. The same happens if the 9.5 MB are outputs of 100 bytes each: a
// transaction that removes 5,000 of them would delay all others for too long. If not even the record fits,
// and the job has store.MinKeptAttemptRecords records, the new record replaces the oldest one.

// userQuotaRoomMaker makes room for data that a user's jobs produce.
type userQuotaRoomMaker struct {
	*txFailure
	clock    Clock
	counters Counters
	history  History
}

// makeRoomForBytes reports whether a user may hold addedBytes more bytes without exceeding maxUserBytes; 0 means
// unlimited. If necessary, it removes outputs and inputs of the user. It removes nothing if that would not be enough,
// or if store.QuotaRemovalLimit does not allow it.
func (m *userQuotaRoomMaker) makeRoomForBytes(uid int, addedBytes, maxUserBytes int64) bool {
	u := m.counters.UserCounts(uid)
	switch {
	case maxUserBytes <= 0 || addedBytes <= 0 || u.UsedBytes+addedBytes <= maxUserBytes:
		return true
	case u.UsedBytes-u.OutputBytes+addedBytes > maxUserBytes:
		return false
	}
	m.recordErr(m.history.TrimUserData(uid, maxUserBytes-addedBytes))
	if m.counters.UserCounts(uid).UsedBytes+addedBytes > maxUserBytes {
		return false
	}
	m.clock.WakeServiceAt(m.clock.Now()) // call ApplyDueChanges soon: after it, the service deletes unneeded output files
	return true
}

// makeRoomForAttempt makes room for the output and the record of an ended attempt. maxUserBytes is the byte limit of
// the job's user; 0 means unlimited. If the output does not fit, it returns a settlement without the output, and lists
// the output file for deletion. If the record does not fit either and the job has store.MinKeptAttemptRecords records,
// it deletes the oldest one, so that the history does not grow.
func (m *userQuotaRoomMaker) makeRoomForAttempt(settlement *store.Settlement, j *Job,
	maxUserBytes int64) *store.Settlement {
	recordBytes := store.AttemptRecordBytes(settlement, j.StartedAttempts)
	if m.makeRoomForBytes(j.UID, recordBytes+store.AttemptOutputBytes(&settlement.Attempt), maxUserBytes) {
		return settlement
	}
	stripped := *settlement
	a := &stripped.Attempt
	if a.OutputFileRef != "" {
		m.recordErr(m.history.AddDeletableOutput(a.OutputFileRef, a.Node))
		m.clock.WakeServiceAt(m.clock.Now())
	}
	if store.AttemptOutputBytes(a) > 0 {
		a.Output, a.OutputFileRef, a.Result, a.OutputBytes = nil, "", nil, queue.OutputRemovedByQuota
	}
	if !m.makeRoomForBytes(j.UID, recordBytes, maxUserBytes) && j.StartedAttempts >= store.MinKeptAttemptRecords {
		m.recordErr(m.history.DeleteOldestAttempt(j.Seq))
	}
	return &stripped
}
