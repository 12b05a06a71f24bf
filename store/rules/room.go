package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Room for what a user's jobs leave.
//
// A request that would take a user above max_bytes_per_user is refused. An attempt that has ended, and a hook of a job that
// has ended, cannot be refused in that way: they are the result of something that was allowed. So room is made for them in
// the same transaction, by removing outputs and inputs of the same user. If that is not enough, the output is not kept, and
// the hook is not made.
//
// Example: a user may hold 10 MB, holds 9.5 MB, and an attempt ends that printed 1 MB. The oldest outputs of the user go,
// until 9 MB are left. If the 9.5 MB are jobs that wait, nothing can be removed, and the attempt is recorded without its
// output. Once not even its record fits, each attempt of a job that is retried takes the place of the job's oldest one.

// makeRoom reports whether a user may hold more bytes, at most most in all; 0 means unlimited. It removes a bounded number
// of outputs and inputs of the user if they may not, but only if the outputs can make enough room.
func (r *Rules) makeRoom(uid int, more, most int64) (bool, error) {
	u := r.tx.User(uid)
	switch {
	case most <= 0 || more <= 0 || u.Bytes+more <= most:
		return true, nil
	case u.Bytes-u.Outputs+more > most:
		return false, nil
	}
	if err := r.tx.TrimUser(uid, most-more); err != nil {
		return false, err
	}
	r.tx.WakeAt(r.tx.Now()) // there may be output files to delete
	return r.tx.User(uid).Bytes+more <= most, nil
}

// makeRoomFor makes room for an attempt of a job that has ended, whose user may hold most bytes. It returns the settlement
// without the output if there is no room for that; an output file is garbage then. If there is no room for the record either,
// the job's oldest record goes, so that its history does not grow.
func (r *Rules) makeRoomFor(e *store.Settlement, j *Job, most int64) (*store.Settlement, error) {
	record := store.RecordSize(e, j.Runs)
	fits, err := r.makeRoom(j.UID, record+store.OutputSize(&e.Attempt), most)
	if err != nil || fits {
		return e, err
	}
	bare := *e
	a := &bare.Attempt
	if a.OutputRef != "" {
		if err := r.tx.AddGarbage(a.OutputRef, a.Node); err != nil {
			return nil, err
		}
		r.tx.WakeAt(r.tx.Now())
	}
	if store.OutputSize(a) > 0 {
		a.Output, a.OutputRef, a.Result, a.OutputBytes = nil, "", nil, queue.OutputOverQuota
	}
	if fits, err = r.makeRoom(j.UID, record, most); err == nil && !fits {
		err = r.tx.ForgetAttempt(j.Seq)
	}
	return &bare, err
}
