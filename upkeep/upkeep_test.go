package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// keeper is a store that records the calls of Run.
type keeper struct {
	store.Upkeep
	Schedules
	next   time.Duration // result of Promote
	err    error
	asked  []time.Duration // times of the calls of Promote, since the start
	begun  time.Time
	alarm  chan struct{}
	refs   []string
	away   int // number of purges that fail before one succeeds
	looked int

	enqueued atomic.Int64

	ended   [queue.Cancelled + 1]int64
	expels  []string // removals, as text
	trimmed []string
	keeps   []store.KeepingQueue
}

func (k *keeper) Counts() store.Counts {
	return store.Counts{States: k.ended, Enqueued: k.enqueued.Load()}
}
func (k *keeper) Now() queue.Millis                                     { return queue.MillisOf(time.Now()) }
func (k *keeper) Keeping(context.Context) ([]store.KeepingQueue, error) { return k.keeps, nil }
func (k *keeper) TrimJobs(ctx context.Context, of string, keep int64, limit int) (bool, error) {
	if of != "" {
		k.trimmed = append(k.trimmed, fmt.Sprint("jobs of ", of, " ", keep))
		return false, nil
	}
	over := store.Counts{States: k.ended}.Bounded() - keep
	if over <= 0 {
		return false, nil
	}
	n, err := k.Purge(ctx, store.Ended{States: store.BoundedStates, Before: k.Now(), Of: &of}, int(min(over, int64(limit))), nil)
	return int64(n) < over, err
}
func (k *keeper) TrimOutputsOf(_ context.Context, of string, keep int64) (bool, error) {
	k.trimmed = append(k.trimmed, fmt.Sprint("outputs of ", of, " ", keep))
	return false, nil
}
func (k *keeper) Purge(_ context.Context, of store.Ended, limit int, _ *int) (int, error) {
	states, before, n := of.States, of.Before, 0
	if *of.Of != "" {
		k.expels = append(k.expels, fmt.Sprint("of ", *of.Of, " ", states, " ", limit, " older than ", (time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
		return 0, nil
	}
	for _, s := range states {
		take := min(int64(limit-n), k.ended[s])
		n += int(take)
		k.ended[s] -= take
	}
	k.expels = append(k.expels, fmt.Sprint(states, " ", n, " older than ", (time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second)))
	return n, nil
}
func (k *keeper) TrimEvents(_ context.Context, before queue.Millis, keep int64) (bool, error) {
	k.trimmed = append(k.trimmed, fmt.Sprint((time.Duration(k.Now()-before)*time.Millisecond).Round(time.Second), " ", keep))
	return false, nil
}

func (k *keeper) Promote(context.Context) (time.Duration, error) {
	k.asked = append(k.asked, time.Since(k.begun))
	return k.next, k.err
}
func (k *keeper) TrimOutputs(_ context.Context, keep int64) (bool, error) {
	k.trimmed = append(k.trimmed, fmt.Sprint("outputs ", keep))
	return false, nil
}
func (k *keeper) Rerank(context.Context) (bool, error) { return false, nil }
func (k *keeper) DueSooner() <-chan struct{}           { return k.alarm }
func (k *keeper) DeletableOutputs(_ context.Context, limit int) ([]string, error) {
	return k.refs[:min(limit, len(k.refs))], nil
}
func (k *keeper) OutputsDeleted(_ context.Context, refs []string) error {
	k.refs = k.refs[len(refs):]
	return nil
}

func (k *keeper) DueSchedules(context.Context, string, int) ([]store.Schedule, time.Duration, error) {
	return nil, time.Hour, nil
}

// upkeep runs Run with a store during a function. It returns how many files were deleted and the
// error of Run.
func upkeep(t *testing.T, k *keeper, during func()) (purged int, err error) {
	return upkeepWith(t, k, Retention{}, during)
}

func upkeepWith(t *testing.T, k *keeper, r Retention, during func()) (purged int, err error) {
	synctest.Test(t, func(t *testing.T) {
		k.begun, k.alarm = time.Now(), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, k, nil, func() Retention { return r }, func(_ context.Context, refs []string) bool {
				if k.away--; k.away >= 0 {
					return false
				}
				purged += len(refs)
				return true
			}, Recurring{}, func() { k.looked++ }, slog.New(slog.DiscardHandler))
		}()
		synctest.Wait()
		during()
		synctest.Wait()
		cancel()
		err = <-done
	})
	return purged, err
}

// A pass takes place at least every 30 s, however far away the next due time is. So a clock step or
// a sleeping machine causes no longer delay.
func TestTheClockIsReadEvery30Seconds(t *testing.T) {
	k := &keeper{next: time.Hour}
	if _, err := upkeep(t, k, func() { time.Sleep(95 * time.Second) }); err != nil {
		t.Fatal(err)
	}
	if len(k.asked) != 4 || k.asked[3] != 90*time.Second || k.looked != 3 {
		t.Errorf("asked after %v, and told of %d looks; want each 30 s", k.asked, k.looked)
	}
}

// After jobs were enqueued, have ended or were removed, the next pass takes place within 5 s: a
// user may exceed a limit, and files may have to be removed.
func TestChangesAreNoticedWithin5Seconds(t *testing.T) {
	k := &keeper{next: time.Hour}
	_, err := upkeep(t, k, func() {
		time.Sleep(7 * time.Second)
		k.enqueued.Add(1)
		time.Sleep(15 * time.Second)
	})
	if err != nil || len(k.asked) != 2 || k.asked[1] != 10*time.Second {
		t.Errorf("asked after %v, %v, want 0 and 10 s", k.asked, err)
	}
}

// The files of removed jobs are deleted even if the disk is full and nothing can be written.
func TestFilesAreDeletedOnAFullDisk(t *testing.T) {
	k := &keeper{next: time.Hour, err: queue.ErrNoSpace, refs: make([]string, 7)}
	if purged, err := upkeep(t, k, func() {}); err != nil || purged != 7 {
		t.Errorf("deleted %d files of 7, %v", purged, err)
	}
}

// A pass takes place when something is due, and immediately when the store signals it.
func TestWhatIsDueIsDoneThen(t *testing.T) {
	k := &keeper{next: 2 * time.Second}
	_, err := upkeep(t, k, func() {
		time.Sleep(4500 * time.Millisecond)
		k.alarm <- struct{}{}
	})
	if err != nil || len(k.asked) != 4 || k.asked[2] != 4*time.Second || k.asked[3] != 4500*time.Millisecond {
		t.Errorf("asked after %v, %v, want 0, 2, 4 and 4.5 s", k.asked, err)
	}
}

// Retention runs every 5 s, however often Run makes a pass, and immediately after the settings
// change.
func TestRetentionIsLookedAtEvery5Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		k := &keeper{next: 100 * time.Millisecond, alarm: make(chan struct{}), begun: begun}
		wake := make(chan struct{})
		var looks []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- Run(ctx, k, wake, func() Retention { looks = append(looks, time.Since(begun)); return Retention{} }, func(context.Context, []string) bool { return true }, Recurring{}, nil, slog.New(slog.DiscardHandler))
		}()
		time.Sleep(11950 * time.Millisecond)
		wake <- struct{}{}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 11950 * time.Millisecond}
		if !slices.Equal(looks, want) {
			t.Errorf("looked after %v, want %v", looks, want)
		}
	})
}

// After a temporary error of the store, Run retries after a second. After a permanent one it ends.
func TestFailuresOfTheStore(t *testing.T) {
	k := &keeper{next: time.Hour, err: queue.ErrNoSpace}
	if _, err := upkeep(t, k, func() { time.Sleep(2500 * time.Millisecond) }); err != nil || len(k.asked) != 3 {
		t.Errorf("refused: asked after %v, %v", k.asked, err)
	}
	k = &keeper{err: queue.ErrOutcomeUnknown}
	if _, err := upkeep(t, k, func() {}); !errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("failed: %v", err)
	}
}

// Outputs that nobody needs are deleted a number at a time without a pause, then
// forgotten.
func TestGarbageIsSwept(t *testing.T) {
	k := &keeper{next: time.Hour, refs: make([]string, 2*sweepStep+7)}
	purged, err := upkeep(t, k, func() {})
	if err != nil || purged != 2*sweepStep+7 || len(k.refs) != 0 {
		t.Errorf("%d were purged, %d are left, %v", purged, len(k.refs), err)
	}
}

// Outputs that nobody can delete now are kept in mind until somebody can.
func TestGarbageIsKeptUntilItIsDeleted(t *testing.T) {
	k := &keeper{next: time.Hour, refs: []string{"1-1", "2-1"}, away: 2}
	purged, err := upkeep(t, k, func() { time.Sleep(50 * time.Second) })
	if err != nil || purged != 0 || len(k.refs) != 2 {
		t.Errorf("while nobody could: %d were purged, %d are left, %v", purged, len(k.refs), err)
	}
	k.away = 1
	purged, err = upkeep(t, k, func() { time.Sleep(35 * time.Second) })
	if err != nil || purged != 2 || len(k.refs) != 0 {
		t.Errorf("afterwards: %d were purged, %d are left, %v", purged, len(k.refs), err)
	}
}

// Objects that were kept too long are removed in steps without a pause: jobs by age and by number,
// events by both.
func TestWhatIsOldGoesInSteps(t *testing.T) {
	k := &keeper{next: time.Hour}
	k.ended[queue.Completed], k.ended[queue.Dead] = 2*retainStep+1, 5
	_, err := upkeepWith(t, k, Retention{States: map[queue.State]time.Duration{queue.Completed: time.Hour, queue.Dead: 0}, Events: time.Minute, MaxEvents: 9, Outputs: 8}, func() {})
	want := []string{"[completed] 100 older than 1h0m0s", "[completed] 100 older than 1h0m0s", "[completed] 1 older than 1h0m0s"}
	if err != nil || !slices.Equal(k.expels, want) || k.trimmed[0] != "1m0s 9" || k.trimmed[1] != "outputs 8" {
		t.Errorf("by age: %q, events %q, %v", k.expels, k.trimmed, err)
	}
	k = &keeper{next: time.Hour}
	k.ended[queue.Completed], k.ended[queue.Cancelled] = 150, 30
	_, err = upkeepWith(t, k, Retention{MaxJobs: 50}, func() {})
	want = []string{"[completed cancelled] 100 older than 0s", "[completed cancelled] 30 older than 0s"}
	if err != nil || !slices.Equal(k.expels, want) {
		t.Errorf("by number: %q, %v", k.expels, err)
	}
}

// The retention of a queue applies to its jobs. The general retention applies to what it does not
// set.
func TestOwnRetention(t *testing.T) {
	k := &keeper{next: time.Hour, keeps: []store.KeepingQueue{{Name: "bulk", Jobs: 6, Outputs: 10}, {Name: "full", Jobs: 5, Outputs: 9}, {Name: "left", Jobs: 9, Outputs: 99}}}
	own := func(name string) store.Retention {
		if name != "left" {
			return store.Retention{Age: time.Minute, MaxJobs: 5, Output: 9}
		}
		return store.Retention{}
	}
	r := Retention{States: map[queue.State]time.Duration{queue.Completed: time.Hour}, MaxEvents: 1, Of: own}
	_, err := upkeepWith(t, k, r, func() {})
	want := []string{"[completed] 0 older than 1h0m0s", "of bulk [completed] 100 older than 1m0s", "of bulk [cancelled] 100 older than 1m0s",
		"of full [completed] 100 older than 1m0s", "of full [cancelled] 100 older than 1m0s", "of left [completed] 100 older than 1h0m0s"}
	trims := []string{"jobs of bulk 5", "outputs of bulk 9"}
	if err != nil || !slices.Equal(k.expels, want) || len(k.trimmed) < len(trims) || !slices.Equal(k.trimmed[:len(trims)], trims) {
		t.Errorf("got %q, %q, %v", k.expels, k.trimmed, err)
	}
}
