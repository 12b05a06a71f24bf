package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// This file makes room for data that a user's jobs produce.
//
// A request that would take a user above max_bytes_per_user is rejected. The record and output of an ended
// attempt cannot be rejected, because the job was already accepted. The same holds for a hook of an ended job.
// So the transaction makes room for this data by removing outputs and inputs of the same user. If that does not
// make enough room, the output is not kept, and the hook is not created.
//
// Example: a user may hold 10 MB and holds 9.5 MB, and an attempt that printed 1 MB ends. The user's oldest
// outputs are removed until 9 MB are left. If the 9.5 MB belong to waiting jobs, nothing can be removed, and
// the attempt is recorded without its output. The same happens if the 9.5 MB are outputs of 100 bytes each.
// 5,000 of them would have to be removed, and such a long transaction would delay all others. If not even the
// record fits, each further attempt of a job that has store.KeptAttemptRecords records replaces the oldest one.

// roomMaker makes room for data that a user's jobs produce.
type roomMaker struct {
	*failure
	clock    Clock
	counters Counters
	history  History
}

// makeRoom reports whether a user may hold addedBytes more bytes. maxBytes is the limit for all bytes of the user;
// 0 means unlimited. If they would exceed it, makeRoom removes outputs and inputs of the user. It removes nothing
// if removing all outputs would not make enough room, or if store.RemovalLimit does not allow the removal.
func (m *roomMaker) makeRoom(uid int, addedBytes, maxBytes int64) bool {
	u := m.counters.UserCounts(uid)
	switch {
	case maxBytes <= 0 || addedBytes <= 0 || u.Bytes+addedBytes <= maxBytes:
		return true
	case u.Bytes-u.OutputBytes+addedBytes > maxBytes:
		return false
	}
	m.recordErr(m.history.TrimUserData(uid, maxBytes-addedBytes))
	if m.counters.UserCounts(uid).Bytes+addedBytes > maxBytes {
		return false
	}
	m.clock.WakeAt(m.clock.Now()) // wake Promote: after it, the service deletes unneeded output files
	return true
}

// makeRoomForAttempt makes room for an ended attempt of a job. maxBytes is the limit for the bytes of the job's
// user; 0 means unlimited. If there is no room for the output, makeRoomForAttempt returns a settlement without the
// output, and lists the output file for deletion. If there is no room for the attempt's record either, and the
// job has store.KeptAttemptRecords records, it deletes the oldest. So the job's history does not grow.
func (m *roomMaker) makeRoomForAttempt(e *store.Settlement, j *Job, maxBytes int64) *store.Settlement {
	recordBytes := store.AttemptRecordSize(e, j.StartedAttempts)
	if m.makeRoom(j.UID, recordBytes+store.OutputSize(&e.Attempt), maxBytes) {
		return e
	}
	stripped := *e
	a := &stripped.Attempt
	if a.OutputRef != "" {
		m.recordErr(m.history.AddDeletableOutput(a.OutputRef, a.Node))
		m.clock.WakeAt(m.clock.Now())
	}
	if store.OutputSize(a) > 0 {
		a.Output, a.OutputRef, a.Result, a.OutputBytes = nil, "", nil, queue.OutputOverQuota
	}
	if !m.makeRoom(j.UID, recordBytes, maxBytes) && j.StartedAttempts >= store.KeptAttemptRecords {
		m.recordErr(m.history.DeleteOldestAttempt(j.Seq))
	}
	return &stripped
}
