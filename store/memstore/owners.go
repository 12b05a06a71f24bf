package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// saveOwnerName stores the account name of the user who sends a request, if no name is stored for the uid yet.
func (s *Store) saveOwnerName(r store.EnqueueRequest) {
	if _, known := s.ownerNames[r.UID]; !known && r.OwnerName != "" {
		s.ownerNames[r.UID] = r.OwnerName
	}
}

// Owners returns the account names by uid; negative uids are of former owners. disowningUIDs are the uids that
// still have leased jobs of a former owner.
func (s *Store) Owners(ctx context.Context) (ownerNames map[int]string, disowningUIDs []int, err error) {
	err = s.runReadTx(ctx, func() error {
		ownerNames = maps.Clone(s.ownerNames)
		for _, j := range s.jobs {
			if j.uidAfterLease != 0 && !slices.Contains(disowningUIDs, j.UID) {
				disowningUIDs = append(disowningUIDs, j.UID)
			}
		}
		return nil
	})
	return ownerNames, disowningUIDs, err
}

// DisownJobs moves the jobs of a uid to a new negative uid with the name of their owner, because the uid now
// belongs to another account. Leased jobs move when their lease ends. It does nothing unless ownerName is the
// stored name of the uid. more is always false, because one call moves all jobs.
func (s *Store) DisownJobs(ctx context.Context, uid int, ownerName string) (more bool, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		name, known := s.ownerNames[uid]
		if !known || name != ownerName {
			return nil
		}
		former := -1
		for s.ownerNames[former] != "" {
			former--
		}
		s.ownerNames[former] = name
		delete(s.ownerNames, uid)
		for _, j := range s.jobsBySeq() {
			if j.HookUID == uid && j.HookEvents&queue.HookJobFlag != 0 {
				j.HookUID = former
			}
			switch {
			case j.UID != uid || j.uidAfterLease != 0:
			case j.isLeased:
				j.uidAfterLease = former
			default:
				s.disownJob(j, former, now)
			}
		}
		for _, b := range slices.Clone(s.batches) {
			switch {
			case b.uid != uid:
			case b.isCommitted:
				b.uid = former
			default:
				s.addBatchAuditEvent(b, "forgotten", now)
				s.removeBatch(b)
			}
		}
		for _, known := range s.schedules {
			if known.OwnerUID == uid {
				known.OwnerUID, known.NextOccurrenceAt, known.NextDueAt, known.PauseOrDamageNote = former, 0, 0,
					store.DisownedScheduleNote
				if known.PausedAt == 0 {
					known.PausedAt = now
				}
			}
		}
		maps.DeleteFunc(s.storedReceipts, func(k requestKey, _ storedReceipt) bool { return k.uid == uid })
		maps.DeleteFunc(s.batchDiscardTimes, func(k requestKey, _ queue.UnixMillis) bool { return k.uid == uid })
		return nil
	})
	return false, err
}

// disownJob moves a job that is not leased to the negative uid of its former owner. A waiting job gets the state
// held.
func (s *Store) disownJob(j *job, formerOwnerUID int, now queue.UnixMillis) {
	j.UID, j.uidAfterLease = formerOwnerUID, 0
	if j.State.IsWaiting() && j.State != queue.Held {
		s.setState(j, queue.Held, now)
		j.Reason = queue.ReasonDisowned
		s.addEvent(j, queue.EventHeld, queue.EventDetail{Reason: queue.ReasonDisowned}, now)
	}
	s.jobWatchers.NotifyOfChangedJobs(j.Seq)
}

// endLease ends the lease of a job. If the job's uid was disowned during the lease, endLease moves the job.
func (s *Store) endLease(j *job, now queue.UnixMillis) {
	j.isLeased, j.HeldUnits = false, ""
	if j.uidAfterLease != 0 {
		s.disownJob(j, j.uidAfterLease, now)
	}
}

// MarkUnownedOutputs marks for deletion, and returns, those of the given output files that belong to no
// attempt and no lease and are not yet marked.
func (s *Store) MarkUnownedOutputs(ctx context.Context, refs []string) (unownedRefs []string, err error) {
	err = s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		owned := slices.Clone(s.deletableOutputs)
		for _, j := range s.jobs {
			if j.isLeased {
				owned = append(owned, fmt.Sprintf("%d-%d", j.Seq, j.Fence))
			}
			for _, a := range j.attempts {
				owned = append(owned, a.OutputFileRef)
			}
		}
		for _, ref := range refs {
			var seq, fence int64
			fmt.Sscanf(ref, "%d-%d", &seq, &fence)
			if ref == fmt.Sprintf("%d-%d", seq, fence) && !slices.Contains(owned, ref) {
				unownedRefs, owned = append(unownedRefs, ref), append(owned, ref)
			}
		}
		s.deletableOutputs = append(s.deletableOutputs, unownedRefs...)
		return nil
	})
	return unownedRefs, err
}
