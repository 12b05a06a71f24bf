package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeStore is a store without schedules. It records the calls that Run makes.
type fakeStore struct {
	noSchedules
	untilNextDueJob          time.Duration   // time that ApplyDueChanges returns: when the next job is due
	applyDueChangesErr       error           // error that ApplyDueChanges returns
	applyDueChangesCallTimes []time.Duration // for each call of ApplyDueChanges: the time since the start of the test
	startedAt                time.Time       // start of the test
	dueChangeHints           chan struct{}   // channel that DueChangeHints returns
	deletableRefs            []string        // files that DeletableOutputs returns
	failingPurgeCount        int             // number of PurgeOutputs calls that fail before one succeeds
	idleCheckCount           int             // number of calls of OnIdleCheck

	enqueuedTotal atomic.Int64

	endedJobCounts     [queue.Cancelled + 1]int64 // number of jobs, by state
	recordedRemovals   []string                   // one text per removal, in order
	recordedTrimCalls  []string                   // one text per call of TrimEndedJobs and similar methods, in order
	ownRetentionQueues []store.OwnRetentionQueue  // queues that QueuesWithOwnRetention returns
}

func (k *fakeStore) Counts() store.Counts {
	return store.Counts{JobsByState: k.endedJobCounts, JobsEverEnqueued: k.enqueuedTotal.Load()}
}
func (k *fakeStore) Now() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) }
func (k *fakeStore) QueuesWithOwnRetention(context.Context) ([]store.OwnRetentionQueue, error) {
	return k.ownRetentionQueues, nil
}
func (k *fakeStore) TrimEndedJobs(ctx context.Context, name string, maxJobs int64, limit int) (bool, error) {
	if name != "" {
		k.recordedTrimCalls = append(k.recordedTrimCalls, fmt.Sprint("jobs of ", name, " ", maxJobs))
		return false, nil
	}
	excess := store.Counts{JobsByState: k.endedJobCounts}.JobsUnderGeneralRetention() - maxJobs
	if excess <= 0 {
		return false, nil
	}
	n, err := k.PurgeEndedJobs(ctx, store.EndedJobFilter{States: store.StatesWithRetention, EndedBefore: k.Now(),
		RetentionQueue: &name},
		int(min(excess, int64(limit))), nil)
	return int64(n) < excess, err
}
func (k *fakeStore) TrimQueueOutputs(_ context.Context, name string, maxBytes int64) (bool, error) {
	k.recordedTrimCalls = append(k.recordedTrimCalls, fmt.Sprint("outputs of ", name, " ", maxBytes))
	return false, nil
}
func (k *fakeStore) PurgeEndedJobs(_ context.Context, filter store.EndedJobFilter, limit int, _ *int) (int, error) {
	states, before, n := filter.States, filter.EndedBefore, 0
	if *filter.RetentionQueue != "" {
		k.recordedRemovals = append(k.recordedRemovals, fmt.Sprint("of ", *filter.RetentionQueue, " ", states, " ", limit,
			" older than ",
			(time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
		return 0, nil
	}
	for _, s := range states {
		take := min(int64(limit-n), k.endedJobCounts[s])
		n += int(take)
		k.endedJobCounts[s] -= take
	}
	k.recordedRemovals = append(k.recordedRemovals, fmt.Sprint(states, " ", n, " older than ",
		(time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
	return n, nil
}
func (k *fakeStore) TrimEvents(_ context.Context, beforeTime queue.UnixMillis, maxEvents int64) (bool, error) {
	age := time.Duration(k.Now()-beforeTime) * time.Millisecond
	k.recordedTrimCalls = append(k.recordedTrimCalls, fmt.Sprint(age.Round(time.Second), " ",
		maxEvents))
	return false, nil
}

func (k *fakeStore) ApplyDueChanges(context.Context) (time.Duration, error) {
	k.applyDueChangesCallTimes = append(k.applyDueChangesCallTimes, time.Since(k.startedAt))
	return k.untilNextDueJob, k.applyDueChangesErr
}
func (k *fakeStore) TrimOutputs(_ context.Context, maxBytes int64) (bool, error) {
	k.recordedTrimCalls = append(k.recordedTrimCalls, fmt.Sprint("outputs ", maxBytes))
	return false, nil
}
func (k *fakeStore) RerankWaitingJobs(context.Context) (bool, error) { return false, nil }
func (k *fakeStore) DueChangeHints() <-chan struct{}                 { return k.dueChangeHints }
func (k *fakeStore) DeletableOutputs(_ context.Context, limit int) ([]string, error) {
	return k.deletableRefs[:min(limit, len(k.deletableRefs))], nil
}
func (k *fakeStore) ForgetDeletedOutputs(_ context.Context, refs []string) error {
	k.deletableRefs = k.deletableRefs[len(refs):]
	return nil
}

func (k *fakeStore) UsersOverStoredBytes(int64) []store.UserStoredBytes { return nil }
func (k *fakeStore) TrimUserData(context.Context, int, int64) (bool, error) {
	return false, nil
}

// noSchedules is a store in which no schedule is due.
type noSchedules struct{ store.Store }

func (noSchedules) DueSchedules(context.Context, string, int) ([]store.Schedule, time.Duration, error) {
	return nil, time.Hour, nil
}

// newConfig returns the Config for a store, with a retention and a function that deletes files.
func newConfig(s store.Store, retention func() Retention, purge PurgeOutputsFunc) Config {
	return Config{Store: s, CurrentRetention: retention, PurgeOutputs: purge, Log: slog.New(slog.DiscardHandler)}
}

// runUpkeep calls the given function while Run is active on a store. It returns the number of deleted files
// and the error of Run.
func runUpkeep(t *testing.T, s *fakeStore, whileRunning func()) (purgedFileCount int, err error) {
	return runUpkeepWithRetention(t, s, Retention{}, whileRunning)
}

// runUpkeepWithRetention is like runUpkeep, but with the given retention.
func runUpkeepWithRetention(t *testing.T, s *fakeStore, retention Retention, whileRunning func()) (purgedFileCount int,
	err error) {
	synctest.Test(t, func(t *testing.T) {
		s.startedAt, s.dueChangeHints = time.Now(), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			d := newConfig(s, func() Retention { return retention }, func(_ context.Context, refs []string) bool {
				if s.failingPurgeCount--; s.failingPurgeCount >= 0 {
					return false
				}
				purgedFileCount += len(refs)
				return true
			})
			d.OnIdleCheck = func() { s.idleCheckCount++ }
			done <- Run(ctx, d)
		}()
		synctest.Wait()
		whileRunning()
		synctest.Wait()
		cancel()
		err = <-done
	})
	return purgedFileCount, err
}

// Run makes a pass (performs each duty once) at least every 30 s, even if nothing is due earlier. So its work is at
// most 30 s late after the clock was set or the machine has slept.
func TestUpkeepPassRunsEvery30Seconds(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour}
	if _, err := runUpkeep(t, k, func() { time.Sleep(95 * time.Second) }); err != nil {
		t.Fatal(err)
	}
	if len(k.applyDueChangesCallTimes) != 4 || k.applyDueChangesCallTimes[3] != 90*time.Second || k.idleCheckCount != 3 {
		t.Errorf("passes after %v, and %d idle checks; want one every 30 s", k.applyDueChangesCallTimes, k.idleCheckCount)
	}
}

// After jobs were enqueued, have ended or were removed, the next pass of Run starts within 5 s. Such a change may make
// a user exceed a limit, or files may have to be removed.
func TestJobChangesStartPassWithin5Seconds(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour}
	_, err := runUpkeep(t, k, func() {
		time.Sleep(7 * time.Second)
		k.enqueuedTotal.Add(1)
		time.Sleep(15 * time.Second)
	})
	if err != nil || len(k.applyDueChangesCallTimes) != 2 || k.applyDueChangesCallTimes[1] != 10*time.Second {
		t.Errorf("passes after %v, %v, want 0 and 10 s", k.applyDueChangesCallTimes, err)
	}
}

// The files of removed jobs are deleted even if the disk is full and the store cannot write.
func TestUpkeepDeletesOutputFilesOnFullDisk(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour, applyDueChangesErr: queue.ErrNoSpace, deletableRefs: make([]string, 7)}
	if purged, err := runUpkeep(t, k, func() {}); err != nil || purged != 7 {
		t.Errorf("deleted %d of 7 files, %v", purged, err)
	}
}

// Run makes a pass (performs each duty once) when a duty is due, and immediately when the store signals that one is
// due.
func TestUpkeepPassRunsWhenDue(t *testing.T) {
	k := &fakeStore{untilNextDueJob: 2 * time.Second}
	_, err := runUpkeep(t, k, func() {
		time.Sleep(4500 * time.Millisecond)
		k.dueChangeHints <- struct{}{}
	})
	if err != nil || len(k.applyDueChangesCallTimes) != 4 || k.applyDueChangesCallTimes[2] != 4*time.Second ||
		k.applyDueChangesCallTimes[3] != 4500*time.Millisecond {
		t.Errorf("passes after %v, %v, want 0, 2, 4 and 4.5 s", k.applyDueChangesCallTimes, err)
	}
}

// The retention settings are applied every 5 s, however often Run makes a pass, and immediately after they change.
func TestRetentionRunsEvery5Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		k := &fakeStore{untilNextDueJob: 100 * time.Millisecond, dueChangeHints: make(chan struct{}), startedAt: started}
		wake := make(chan struct{})
		var passes []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			retention := func() Retention {
				passes = append(passes, time.Since(started))
				return Retention{}
			}
			d := newConfig(k, retention, func(context.Context, []string) bool { return true })
			d.SettingsChanged = wake
			done <- Run(ctx, d)
		}()
		time.Sleep(11950 * time.Millisecond)
		wake <- struct{}{}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 11950 * time.Millisecond}
		if !slices.Equal(passes, want) {
			t.Errorf("retention ran after %v, want %v", passes, want)
		}
	})
}

// After a temporary error of the store, Run tries again a second later. It returns a permanent error.
func TestUpkeepRetriesAfterStoreFailure(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour, applyDueChangesErr: queue.ErrNoSpace}
	if _, err := runUpkeep(t, k, func() { time.Sleep(2500 * time.Millisecond) }); err != nil ||
		len(k.applyDueChangesCallTimes) != 3 {
		t.Errorf("temporary errors: passes after %v, %v", k.applyDueChangesCallTimes, err)
	}
	k = &fakeStore{applyDueChangesErr: queue.ErrOutcomeUnknown}
	if _, err := runUpkeep(t, k, func() {}); !errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("permanent error: Run returned %v", err)
	}
}

// Output files that belong to no attempt are deleted in steps, without pauses. After that, the store removes
// them from its list.
func TestDeletableOutputsAreDeletedInSteps(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour, deletableRefs: make([]string, 2*maxDeletedFilesPerPass+7)}
	purged, err := runUpkeep(t, k, func() {})
	if err != nil || purged != 2*maxDeletedFilesPerPass+7 || len(k.deletableRefs) != 0 {
		t.Errorf("%d files were deleted, %d remain in the list, %v", purged, len(k.deletableRefs), err)
	}
}

// Output files that cannot be deleted stay in the list of the store until they are deleted.
func TestUndeletedOutputsStayInStoresList(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour, deletableRefs: []string{"1-1", "2-1"}, failingPurgeCount: 2}
	purged, err := runUpkeep(t, k, func() { time.Sleep(50 * time.Second) })
	if err != nil || purged != 0 || len(k.deletableRefs) != 2 {
		t.Errorf("while deletion fails: %d files were deleted, %d remain in the list, %v", purged, len(k.deletableRefs), err)
	}
	k.failingPurgeCount = 1
	purged, err = runUpkeep(t, k, func() { time.Sleep(35 * time.Second) })
	if err != nil || purged != 2 || len(k.deletableRefs) != 0 {
		t.Errorf("after deletion works again: %d files were deleted, %d remain in the list, %v", purged, len(k.deletableRefs),
			err)
	}
}

// Retention removes jobs and events in steps, without pauses: those beyond their maximum age, and those beyond
// their maximum number.
func TestRetentionRemovesJobsAndEventsInSteps(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour}
	k.endedJobCounts[queue.Completed], k.endedJobCounts[queue.Dead] = 2*maxRemovedJobsPerStep+1, 5
	_, err := runUpkeepWithRetention(t, k,
		Retention{MaxAgeByState: map[queue.State]time.Duration{queue.Completed: time.Hour,
			queue.Dead: 0}, MaxEventAge: time.Minute, MaxEvents: 9, MaxOutputBytes: 8}, func() {})
	want := []string{"[completed] 100 older than 1h0m0s", "[completed] 100 older than 1h0m0s",
		"[completed] 1 older than 1h0m0s"}
	if err != nil || !slices.Equal(k.recordedRemovals, want) || k.recordedTrimCalls[0] != "1m0s 9" ||
		k.recordedTrimCalls[1] != "outputs 8" {
		t.Errorf("retention by age: removals %q, trims %q, %v", k.recordedRemovals, k.recordedTrimCalls, err)
	}
	k = &fakeStore{untilNextDueJob: time.Hour}
	k.endedJobCounts[queue.Completed], k.endedJobCounts[queue.Cancelled] = 150, 30
	_, err = runUpkeepWithRetention(t, k, Retention{MaxCompletedOrCancelledJobs: 50}, func() {})
	want = []string{"[completed cancelled] 100 older than 0s", "[completed cancelled] 30 older than 0s"}
	if err != nil || !slices.Equal(k.recordedRemovals, want) {
		t.Errorf("retention by number: removals %q, %v", k.recordedRemovals, err)
	}
}

// The retention of a queue applies to the jobs of the queue. For each value that the queue does not set, the
// general retention applies.
func TestQueueRetentionAppliesToItsJobs(t *testing.T) {
	k := &fakeStore{untilNextDueJob: time.Hour, ownRetentionQueues: []store.OwnRetentionQueue{
		{Name: "bulk", EndedJobCount: 6, OutputBytes: 10}, {Name: "full", EndedJobCount: 5, OutputBytes: 9},
		{Name: "left", EndedJobCount: 9, OutputBytes: 99}}}
	retentionOf := func(name string) store.Retention {
		if name != "left" {
			return store.Retention{MaxAge: time.Minute, MaxJobs: 5, MaxOutputBytes: 9}
		}
		return store.Retention{}
	}
	r := Retention{MaxAgeByState: map[queue.State]time.Duration{queue.Completed: time.Hour}, MaxEvents: 1,
		RetentionOfQueue: retentionOf}
	_, err := runUpkeepWithRetention(t, k, r, func() {})
	slices.Sort(k.recordedRemovals) // the states of a queue are in no particular order
	want := []string{"[completed] 0 older than 1h0m0s", "of bulk [cancelled] 100 older than 1m0s",
		"of bulk [completed] 100 older than 1m0s",
		"of full [cancelled] 100 older than 1m0s", "of full [completed] 100 older than 1m0s",
		"of left [completed] 100 older than 1h0m0s"}
	trims := []string{"jobs of bulk 5", "outputs of bulk 9"}
	if err != nil || !slices.Equal(k.recordedRemovals, want) || len(k.recordedTrimCalls) < len(trims) ||
		!slices.Equal(k.recordedTrimCalls[:len(trims)], trims) {
		t.Errorf("got removals %q, trims %q, %v", k.recordedRemovals, k.recordedTrimCalls, err)
	}
}

// quotaStore is a store in which only the bytes of users can exceed a limit.
type quotaStore struct {
	store.Store
	bytesByUID         map[int]int64 // by uid
	remainingTrimCalls int           // number of TrimUserData calls that report that more can be removed
}

func (q *quotaStore) Now() queue.UnixMillis { return 0 }

func (q *quotaStore) TrimEvents(context.Context, queue.UnixMillis, int64) (bool, error) {
	return false, nil
}

func (q *quotaStore) UsersOverStoredBytes(maxBytes int64) (users []store.UserStoredBytes) {
	for uid, n := range q.bytesByUID {
		if n > maxBytes {
			users = append(users, store.UserStoredBytes{UID: uid, StoredBytes: n})
		}
	}
	store.SortByStoredBytes(users)
	return users
}

func (q *quotaStore) TrimUserData(_ context.Context, uid int, maxBytes int64) (bool, error) {
	q.bytesByUID[uid] = maxBytes
	q.remainingTrimCalls--
	return q.remainingTrimCalls >= 0, nil
}

// Retention trims only users whose jobs hold more bytes than the limit. It reports that more can be removed if the
// store reports this for at least one of these users. Without a limit, it trims the data of no user.
func TestRetentionTrimsUsersOverTheirLimit(t *testing.T) {
	s := &quotaStore{bytesByUID: map[int]int64{1: 10, 2: 99, 3: 11}, remainingTrimCalls: 1}
	if more, err := applyRetention(t.Context(), s, Retention{}); more || err != nil || s.bytesByUID[2] != 99 {
		t.Errorf("without a limit: user 2 holds %d bytes, more %t, %v; want 99 and no more", s.bytesByUID[2], more, err)
	}
	more, err := applyRetention(t.Context(), s, Retention{MaxBytesPerUser: 10})
	if want := (map[int]int64{1: 10, 2: 10, 3: 10}); !more || err != nil || !maps.Equal(s.bytesByUID, want) {
		t.Errorf("first pass: users hold %v, more %t, %v; want %v and more", s.bytesByUID, more, err, want)
	}
	s.bytesByUID[1] = 11
	if more, err = applyRetention(t.Context(), s, Retention{MaxBytesPerUser: 10}); more || err != nil ||
		s.bytesByUID[1] != 10 {
		t.Errorf("second pass: user 1 holds %d bytes, more %t, %v; want 10 and no more", s.bytesByUID[1], more, err)
	}
}
