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

// fakeStore is a store without schedules. It records the calls of Run.
type fakeStore struct {
	noSchedules
	promoteDelay  time.Duration   // time that Promote returns: when the next job is due
	promoteErr    error           // error that Promote returns
	promoteCalls  []time.Duration // for each call of Promote: the time since the start of the test
	startedAt     time.Time       // start of the test
	promoteHints  chan struct{}   // channel that PromoteHints returns
	refs          []string        // files that DeletableOutputs returns
	failingPurges int             // number of PurgeOutputs calls that fail before one succeeds
	idleChecks    int             // number of calls of OnIdleCheck

	enqueuedTotal atomic.Int64

	endedCounts        [queue.Cancelled + 1]int64 // number of jobs, by state
	removals           []string                   // one text per removal, in order
	trimCalls          []string                   // one text per call of TrimJobs and similar methods, in order
	ownRetentionQueues []store.OwnRetentionQueue  // queues that OwnRetentionQueues returns
}

func (k *fakeStore) Counts() store.Counts {
	return store.Counts{States: k.endedCounts, EnqueuedTotal: k.enqueuedTotal.Load()}
}
func (k *fakeStore) Now() queue.Millis { return queue.MillisOf(time.Now()) }
func (k *fakeStore) OwnRetentionQueues(context.Context) ([]store.OwnRetentionQueue, error) {
	return k.ownRetentionQueues, nil
}
func (k *fakeStore) TrimJobs(ctx context.Context, name string, maxJobs int64, limit int) (bool, error) {
	if name != "" {
		k.trimCalls = append(k.trimCalls, fmt.Sprint("jobs of ", name, " ", maxJobs))
		return false, nil
	}
	excess := store.Counts{States: k.endedCounts}.UnderGeneralRetention() - maxJobs
	if excess <= 0 {
		return false, nil
	}
	n, err := k.Purge(ctx, store.EndedFilter{States: store.RetentionStates, Cutoff: k.Now(), RetentionQueue: &name},
		int(min(excess, int64(limit))), nil)
	return int64(n) < excess, err
}
func (k *fakeStore) TrimQueueOutputs(_ context.Context, name string, maxBytes int64) (bool, error) {
	k.trimCalls = append(k.trimCalls, fmt.Sprint("outputs of ", name, " ", maxBytes))
	return false, nil
}
func (k *fakeStore) Purge(_ context.Context, selection store.EndedFilter, limit int, _ *int) (int, error) {
	states, before, n := selection.States, selection.Cutoff, 0
	if *selection.RetentionQueue != "" {
		k.removals = append(k.removals, fmt.Sprint("of ", *selection.RetentionQueue, " ", states, " ", limit, " older than ",
			(time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
		return 0, nil
	}
	for _, s := range states {
		take := min(int64(limit-n), k.endedCounts[s])
		n += int(take)
		k.endedCounts[s] -= take
	}
	k.removals = append(k.removals, fmt.Sprint(states, " ", n, " older than ",
		(time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
	return n, nil
}
func (k *fakeStore) TrimEvents(_ context.Context, beforeTime queue.Millis, maxEvents int64) (bool, error) {
	age := time.Duration(k.Now()-beforeTime) * time.Millisecond
	k.trimCalls = append(k.trimCalls, fmt.Sprint(age.Round(time.Second), " ",
		maxEvents))
	return false, nil
}

func (k *fakeStore) Promote(context.Context) (time.Duration, error) {
	k.promoteCalls = append(k.promoteCalls, time.Since(k.startedAt))
	return k.promoteDelay, k.promoteErr
}
func (k *fakeStore) TrimOutputs(_ context.Context, maxBytes int64) (bool, error) {
	k.trimCalls = append(k.trimCalls, fmt.Sprint("outputs ", maxBytes))
	return false, nil
}
func (k *fakeStore) Rerank(context.Context) (bool, error) { return false, nil }
func (k *fakeStore) PromoteHints() <-chan struct{}        { return k.promoteHints }
func (k *fakeStore) DeletableOutputs(_ context.Context, limit int) ([]string, error) {
	return k.refs[:min(limit, len(k.refs))], nil
}
func (k *fakeStore) ForgetDeletedOutputs(_ context.Context, refs []string) error {
	k.refs = k.refs[len(refs):]
	return nil
}

func (k *fakeStore) UsersOverBytes(int64) []store.UserBytes { return nil }
func (k *fakeStore) TrimUserData(context.Context, int, int64) (bool, error) {
	return false, nil
}

// noSchedules is a store in which no schedule is due.
type noSchedules struct{ Schedules }

func (noSchedules) DueSchedules(context.Context, string, int) ([]store.Schedule, time.Duration, error) {
	return nil, time.Hour, nil
}

// dutiesFor returns the Duties for a store that has all parts, with a retention and a function that deletes
// files.
func dutiesFor[S interface {
	Timers
	Retainer
	DeletableOutputs
	Schedules
}](s S, retention func() Retention, purge PurgeOutputs) Duties {
	return Duties{
		Timers: s, Retainer: s, Retention: retention, DeletableOutputs: s, PurgeOutputs: purge, Schedules: s,
		Log: slog.New(slog.DiscardHandler),
	}
}

// runUpkeep calls the given function while Run is active on a store. It returns the number of deleted files
// and the error of Run.
func runUpkeep(t *testing.T, k *fakeStore, action func()) (purged int, err error) {
	return runUpkeepWith(t, k, Retention{}, action)
}

// runUpkeepWith is like runUpkeep, but with the given retention.
func runUpkeepWith(t *testing.T, k *fakeStore, r Retention, action func()) (purged int, err error) {
	synctest.Test(t, func(t *testing.T) {
		k.startedAt, k.promoteHints = time.Now(), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			d := dutiesFor(k, func() Retention { return r }, func(_ context.Context, refs []string) bool {
				if k.failingPurges--; k.failingPurges >= 0 {
					return false
				}
				purged += len(refs)
				return true
			})
			d.OnIdleCheck = func() { k.idleChecks++ }
			done <- Run(ctx, d)
		}()
		synctest.Wait()
		action()
		synctest.Wait()
		cancel()
		err = <-done
	})
	return purged, err
}

// Run makes a pass at least every 30 s, even if nothing is due earlier. So its work is at most 30 s late
// after the clock was set or the machine has slept.
func TestRunPassesEvery30Seconds(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour}
	if _, err := runUpkeep(t, k, func() { time.Sleep(95 * time.Second) }); err != nil {
		t.Fatal(err)
	}
	if len(k.promoteCalls) != 4 || k.promoteCalls[3] != 90*time.Second || k.idleChecks != 3 {
		t.Errorf("passes after %v, and %d idle checks; want one every 30 s", k.promoteCalls, k.idleChecks)
	}
}

// After jobs were enqueued, have ended or were removed, the next pass starts within 5 s. Such a change may make a
// user exceed a limit, or files may have to be removed.
func TestChangesStartPassWithin5Seconds(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour}
	_, err := runUpkeep(t, k, func() {
		time.Sleep(7 * time.Second)
		k.enqueuedTotal.Add(1)
		time.Sleep(15 * time.Second)
	})
	if err != nil || len(k.promoteCalls) != 2 || k.promoteCalls[1] != 10*time.Second {
		t.Errorf("passes after %v, %v, want 0 and 10 s", k.promoteCalls, err)
	}
}

// The files of removed jobs are deleted even if the disk is full and the store cannot write.
func TestFilesAreDeletedOnAFullDisk(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour, promoteErr: queue.ErrNoSpace, refs: make([]string, 7)}
	if purged, err := runUpkeep(t, k, func() {}); err != nil || purged != 7 {
		t.Errorf("deleted %d of 7 files, %v", purged, err)
	}
}

// Run makes a pass when something is due. It makes one immediately when the store signals that something is
// due.
func TestRunPassesWhenDue(t *testing.T) {
	k := &fakeStore{promoteDelay: 2 * time.Second}
	_, err := runUpkeep(t, k, func() {
		time.Sleep(4500 * time.Millisecond)
		k.promoteHints <- struct{}{}
	})
	if err != nil || len(k.promoteCalls) != 4 || k.promoteCalls[2] != 4*time.Second ||
		k.promoteCalls[3] != 4500*time.Millisecond {
		t.Errorf("passes after %v, %v, want 0, 2, 4 and 4.5 s", k.promoteCalls, err)
	}
}

// Retention runs every 5 s, however often Run makes a pass. It also runs immediately after the
// settings change.
func TestRetentionRunsEvery5Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		k := &fakeStore{promoteDelay: 100 * time.Millisecond, promoteHints: make(chan struct{}), startedAt: started}
		wake := make(chan struct{})
		var passes []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			retention := func() Retention {
				passes = append(passes, time.Since(started))
				return Retention{}
			}
			d := dutiesFor(k, retention, func(context.Context, []string) bool { return true })
			d.Wake = wake
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
func TestRunRetriesAfterStoreFailure(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour, promoteErr: queue.ErrNoSpace}
	if _, err := runUpkeep(t, k, func() { time.Sleep(2500 * time.Millisecond) }); err != nil || len(k.promoteCalls) != 3 {
		t.Errorf("temporary errors: passes after %v, %v", k.promoteCalls, err)
	}
	k = &fakeStore{promoteErr: queue.ErrOutcomeUnknown}
	if _, err := runUpkeep(t, k, func() {}); !errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("permanent error: Run returned %v", err)
	}
}

// Output files that belong to no attempt are deleted in steps, without pauses. After that, the store removes
// them from its list.
func TestGarbageIsDeleted(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour, refs: make([]string, 2*maxFilesPerSweep+7)}
	purged, err := runUpkeep(t, k, func() {})
	if err != nil || purged != 2*maxFilesPerSweep+7 || len(k.refs) != 0 {
		t.Errorf("%d files were deleted, %d remain in the list, %v", purged, len(k.refs), err)
	}
}

// Output files that cannot be deleted stay in the list of the store until they are deleted.
func TestGarbageIsKeptUntilItIsDeleted(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour, refs: []string{"1-1", "2-1"}, failingPurges: 2}
	purged, err := runUpkeep(t, k, func() { time.Sleep(50 * time.Second) })
	if err != nil || purged != 0 || len(k.refs) != 2 {
		t.Errorf("while deletion fails: %d files were deleted, %d remain in the list, %v", purged, len(k.refs), err)
	}
	k.failingPurges = 1
	purged, err = runUpkeep(t, k, func() { time.Sleep(35 * time.Second) })
	if err != nil || purged != 2 || len(k.refs) != 0 {
		t.Errorf("after deletion works again: %d files were deleted, %d remain in the list, %v", purged, len(k.refs), err)
	}
}

// Retention removes jobs and events in steps, without pauses: those beyond their maximum age, and those beyond
// their maximum number.
func TestRetentionWorksInSteps(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour}
	k.endedCounts[queue.Completed], k.endedCounts[queue.Dead] = 2*maxRemovedPerStep+1, 5
	_, err := runUpkeepWith(t, k, Retention{AgeByState: map[queue.State]time.Duration{queue.Completed: time.Hour,
		queue.Dead: 0}, EventAge: time.Minute, MaxEvents: 9, MaxOutputBytes: 8}, func() {})
	want := []string{"[completed] 100 older than 1h0m0s", "[completed] 100 older than 1h0m0s",
		"[completed] 1 older than 1h0m0s"}
	if err != nil || !slices.Equal(k.removals, want) || k.trimCalls[0] != "1m0s 9" || k.trimCalls[1] != "outputs 8" {
		t.Errorf("retention by age: removals %q, trims %q, %v", k.removals, k.trimCalls, err)
	}
	k = &fakeStore{promoteDelay: time.Hour}
	k.endedCounts[queue.Completed], k.endedCounts[queue.Cancelled] = 150, 30
	_, err = runUpkeepWith(t, k, Retention{MaxJobs: 50}, func() {})
	want = []string{"[completed cancelled] 100 older than 0s", "[completed cancelled] 30 older than 0s"}
	if err != nil || !slices.Equal(k.removals, want) {
		t.Errorf("retention by number: removals %q, %v", k.removals, err)
	}
}

// The retention of a queue applies to the jobs of the queue. For each value that the queue does not set, the
// general retention applies.
func TestQueueRetentionIsApplied(t *testing.T) {
	k := &fakeStore{promoteDelay: time.Hour, ownRetentionQueues: []store.OwnRetentionQueue{
		{Name: "bulk", Jobs: 6, OutputBytes: 10}, {Name: "full", Jobs: 5, OutputBytes: 9},
		{Name: "left", Jobs: 9, OutputBytes: 99}}}
	retentionOf := func(name string) store.Retention {
		if name != "left" {
			return store.Retention{MaxAge: time.Minute, MaxJobs: 5, MaxOutputBytes: 9}
		}
		return store.Retention{}
	}
	r := Retention{AgeByState: map[queue.State]time.Duration{queue.Completed: time.Hour}, MaxEvents: 1,
		QueueRetention: retentionOf}
	_, err := runUpkeepWith(t, k, r, func() {})
	slices.Sort(k.removals) // the states of a queue are in no particular order
	want := []string{"[completed] 0 older than 1h0m0s", "of bulk [cancelled] 100 older than 1m0s",
		"of bulk [completed] 100 older than 1m0s",
		"of full [cancelled] 100 older than 1m0s", "of full [completed] 100 older than 1m0s",
		"of left [completed] 100 older than 1h0m0s"}
	trims := []string{"jobs of bulk 5", "outputs of bulk 9"}
	if err != nil || !slices.Equal(k.removals, want) || len(k.trimCalls) < len(trims) ||
		!slices.Equal(k.trimCalls[:len(trims)], trims) {
		t.Errorf("got removals %q, trims %q, %v", k.removals, k.trimCalls, err)
	}
}

// quotaStore is a store in which only the bytes of users can exceed a limit.
type quotaStore struct {
	Retainer
	bytes          map[int]int64 // by uid
	remainingSteps int           // number of TrimUserData calls that report that more can be removed
}

func (q *quotaStore) Now() queue.Millis { return 0 }

func (q *quotaStore) TrimEvents(context.Context, queue.Millis, int64) (bool, error) {
	return false, nil
}

func (q *quotaStore) UsersOverBytes(maxBytes int64) (list []store.UserBytes) {
	for uid, n := range q.bytes {
		if n > maxBytes {
			list = append(list, store.UserBytes{UID: uid, Bytes: n})
		}
	}
	store.SortUserBytes(list)
	return list
}

func (q *quotaStore) TrimUserData(_ context.Context, uid int, maxBytes int64) (bool, error) {
	q.bytes[uid] = maxBytes
	q.remainingSteps--
	return q.remainingSteps >= 0, nil
}

// Retention trims only users whose jobs hold more bytes than the limit. It reports that more can be removed
// while the store says so for any of these users. Without a limit, it trims no user.
func TestRetentionTrimsUsersOverTheirLimit(t *testing.T) {
	s := &quotaStore{bytes: map[int]int64{1: 10, 2: 99, 3: 11}, remainingSteps: 1}
	if more, err := applyRetention(t.Context(), s, Retention{}); more || err != nil || s.bytes[2] != 99 {
		t.Errorf("without a limit: user 2 holds %d bytes, more %t, %v; want 99 and no more", s.bytes[2], more, err)
	}
	more, err := applyRetention(t.Context(), s, Retention{MaxBytesPerUser: 10})
	if want := (map[int]int64{1: 10, 2: 10, 3: 10}); !more || err != nil || !maps.Equal(s.bytes, want) {
		t.Errorf("first pass: users hold %v, more %t, %v; want %v and more", s.bytes, more, err, want)
	}
	s.bytes[1] = 11
	if more, err = applyRetention(t.Context(), s, Retention{MaxBytesPerUser: 10}); more || err != nil || s.bytes[1] != 10 {
		t.Errorf("second pass: user 1 holds %d bytes, more %t, %v; want 10 and no more", s.bytes[1], more, err)
	}
}
