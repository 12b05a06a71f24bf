package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// begin runs a pool with a store and a living runner that has no jobs yet.
func begin(t *testing.T, workers int, priorities ...int64) (*hub, *fakeRunner, *worker.Pool) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	if len(priorities) > 0 {
		s.put(priorities...)
	}
	f := newRunner(t, root, "first")
	return s, f, run(t, s, root, workers)
}

// lease returns the lease of a job's first claim.
func lease(seq int64) wire.Lease { return wire.Lease{Seq: seq, Fence: 1} }

// Jobs start in the order of the queue, one per free worker. The end of a job is enough to start
// the next one.
func TestJobsAreStartedInOrderAsWorkersBecomeFree(t *testing.T) {
	s, f, _ := begin(t, 2, 1, 5, 3, 5, 2)
	want := []int64{2, 4, 3, 5, 1}
	hears[*wire.Start](t, f, 2)
	f.settled()
	check(t, "started at first", f.started(), want[:2])
	for i, seq := range want {
		f.say(ran(lease(seq), long))
		if next := i + 3; next <= len(want) {
			hears[*wire.Start](t, f, next)
		}
		s.becomes(seq, queue.Completed)
	}
	f.settled()
	check(t, "started", f.started(), want)
	check(t, "most at once", f.mostOpen(), 2)
}

// A job with a uid that now belongs to another account is held. Other jobs of the same claim run.
// The same holds for suspects.
func TestDisownedJobsAreHeld(t *testing.T) {
	s, f, _ := begin(t, 4)
	drafts := make([]queue.Job, 4)
	for i := range drafts {
		drafts[i] = queue.Job{MaxAttempts: 1, ExitCode: -1, Execution: queue.Execution{Argv: []string{"true"}}}
	}
	drafts[1].UID, drafts[2].UID, drafts[2].Suspect = strangers, strangers, true
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	hears[*wire.Start](t, f, 2)
	for _, seq := range []int64{2, 3} {
		s.becomes(seq, queue.Held)
		s.is(seq, queue.Held, queue.ReasonDisowned)
	}
	f.settled()
	check(t, "started", f.started(), []int64{1, 4})
	check(t, "leased", s.leased(), []int64{1, 4})
}

// A job whose user only other nodes know waits for those nodes. It is not held and loses no
// attempt.
func TestJobsOfOtherMachinesUsersWait(t *testing.T) {
	s, f, _ := begin(t, 1)
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{{UID: elsewhere, MaxAttempts: 1, ExitCode: -1, Execution: queue.Execution{Argv: []string{"true"}}}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is given back", func() bool { j := s.job(1); return j.State == queue.Pending && j.Refunds == 1 })
	if j := s.job(1); j.Attempts != 0 || j.DueAt <= j.CreatedAt {
		t.Errorf("it is %+v", j)
	}
	f.settled()
	check(t, "started", len(f.started()), 0)
}

// Once run times are known, the pool prefetches as many jobs as run in 20 ms, at most 64. If not
// every worker would get one of them, it prefetches none.
func TestShortJobsAreClaimedAhead(t *testing.T) {
	for _, c := range []struct {
		workers int
		took    time.Duration
		leases  int
	}{
		{1, time.Millisecond, 1 + 20},
		{1, 20 * time.Millisecond, 1 + 1},
		{1, 21 * time.Millisecond, 1},
		{2, 0, 2 + 64}, // below the clock's resolution, counts as half a millisecond
		{2, time.Millisecond, 2 + 40},
		{4, 20 * time.Millisecond, 4 + 4},
		{4, 30 * time.Millisecond, 4},
		{4, time.Minute, 4},
	} {
		t.Run(fmt.Sprintf("%d of %v", c.workers, c.took), func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				s, root := newStore(t), t.TempDir()
				s.put(make([]int64, 100)...)
				f := newRunner(t, root, "first")
				run(t, s, root, c.workers)
				hears[*wire.Start](t, f, c.workers)
				f.settled()
				first := len(f.started())
				f.say(ran(lease(1), c.took))
				f.settled()
				started := f.started()
				if len(heard[*wire.Drop](f)) > 0 && try < 5 {
					// The machine was too slow: jobs that do not start in 50 ms are recalled, and
					// fewer are prefetched.
					continue
				}
				check(t, "held while no run time is known", first, c.workers)
				check(t, "held after the first end", len(started)-1, c.leases)
				if !slices.IsSorted(started) {
					t.Errorf("started out of order: %v", started)
				}
				return
			}
		})
	}
}

// Workers that are free while a smaller claim waits are used when jobs arrive, without any other
// event. The runner does not report the starts, because a report would be such an event, as would a
// recall.
func TestRoomThatComesDuringAWaitIsUsed(t *testing.T) {
	s, f, _ := begin(t, 3, 0, 0)
	hears[*wire.Start](t, f, 2)
	until(t, "one more was waited for", func() bool { return s.awaited() == 1 })
	f.say(ran(lease(1), long))
	f.settled()
	f.keepsQuiet()
	s.put(0, 0, 0)
	_, at := hears[*wire.Start](t, f, 4)
	f.say(&wire.Started{Attempt: running(lease(3))}, &wire.Started{Attempt: running(lease(4))})
	f.settled()
	for _, seq := range []int64{3, 4} {
		s.becomes(seq, queue.Processing)
	}
	check(t, "started", f.started(), []int64{1, 2, 3, 4})
	if len(heard[*wire.Drop](f)) > 0 {
		if _, asked := hears[*wire.Drop](t, f, 1); !asked.After(at) {
			t.Error("the second was started only when the first was asked back")
		}
	}
	check(t, "most at once", f.mostOpen(), 3)
}

// A pool whose workers are all busy claims nothing. It claims again when a worker is free.
func TestAFullPoolWaitsForJobsOnceAWorkerIsFree(t *testing.T) {
	s, f, _ := begin(t, 1, 0)
	hears[*wire.Start](t, f, 1)
	f.settled()
	check(t, "waited for by a full pool", s.awaited(), 0)
	f.say(ran(lease(1), long))
	until(t, "a job was waited for", func() bool { return s.awaited() == 1 })
	s.put(0)
	hears[*wire.Start](t, f, 2)
}

// Additional workers start immediately, and the runner is notified. A pool scaled to 0 claims
// nothing, even if a claim was waiting, until it is scaled up again.
func TestScaleActsAtOnce(t *testing.T) {
	s, f, p := begin(t, 1, 0, 0)
	hears[*wire.Start](t, f, 1)
	f.settled()
	p.Scale(3)
	hears[*wire.Start](t, f, 2)
	setups := heard[*wire.Setup](f)
	check(t, "workers in the last SETUP", setups[len(setups)-1].Workers, 3)
	until(t, "one more was waited for", func() bool { return s.awaited() == 1 })
	p.Scale(0)
	f.settled()
	s.put(0)
	f.settled()
	check(t, "started with no worker", f.started(), []int64{1, 2})
	s.is(3, queue.Pending, "")
	check(t, "leased with no worker", s.leased(), []int64{1, 2})
	p.Scale(3)
	hears[*wire.Start](t, f, 3)
	check(t, "workers", p.Workers(), 3)
}

// oneUnstarted starts a pool with two workers. Job 1 runs. Job 2 was sent to the runner, which does
// not answer.
func oneUnstarted(t *testing.T) (*hub, *fakeRunner, *worker.Pool) {
	t.Helper()
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	f.keepsQuiet()
	p.Scale(2)
	s.put(0)
	hears[*wire.Start](t, f, 2)
	return s, f, p
}

// With fewer workers, jobs that have not started return to the queue and running jobs continue.
func TestScaleDownTakesBackWhatHasNotStarted(t *testing.T) {
	s, f, p := oneUnstarted(t)
	n := len(heard[*wire.Setup](f))
	p.Scale(1)
	_, told := hears[*wire.Setup](t, f, n+1)
	drop, at := hears[*wire.Drop](t, f, 1)
	check(t, "dropped", drop.Lease, lease(2))
	if at.After(told) {
		t.Error("taken back only when it had waited for long")
	}
	f.say(&wire.Dropped{Lease: drop.Lease, Dropped: true})
	until(t, "it was given back", func() bool { return len(s.leased()) == 1 })
	f.settled()
	check(t, "leased", s.leased(), []int64{1})
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
}

// A result is acknowledged only after it is stored. The job that takes the free worker is claimed
// in the same exchange. If the runner repeats the result, it is not settled again.
func TestAResultIsStoredThenAcknowledged(t *testing.T) {
	s, f, p := begin(t, 1, 0, 0)
	s.becomes(1, queue.Processing)
	release := s.holdUp()
	f.say(ran(lease(1), long))
	until(t, "its turn had begun", s.holdsOne)
	// Frames are ordered: everything sent before this Setup has arrived before it.
	n := len(heard[*wire.Setup](f))
	p.Refresh()
	hears[*wire.Setup](t, f, n+1)
	check(t, "acknowledged before it was stored", f.acked(), []wire.Lease(nil))
	check(t, "started before it was stored", f.started(), []int64{1})
	release()
	hears[*wire.Start](t, f, 2)
	check(t, "acknowledged", f.acked(), []wire.Lease{lease(1)})
	s.is(1, queue.Completed, "")
	s.mu.Lock()
	for _, turn := range s.turns {
		if len(turn.Ended) > 0 {
			check(t, "wanted in the turn of the end", turn.Want, 1)
		}
	}
	s.mu.Unlock()
	f.say(ran(lease(1), long))
	f.settled()
	check(t, "acknowledged", f.acked(), []wire.Lease{lease(1), lease(1)})
	ended, _, _ := s.endings(1)
	check(t, "settled", ended, 1)
	check(t, "runs", s.job(1).Runs, 1)
}

// A result for a lease that the pool does not hold is acknowledged, so that the runner can discard
// it, and changes nothing.
func TestAResultThatNobodyWaitsForChangesNothing(t *testing.T) {
	s, f, _ := begin(t, 1, 0, 0)
	s.becomes(1, queue.Processing)
	strangers := []wire.Lease{{Seq: 1, Fence: 7}, {Seq: 2, Fence: 1}, {Seq: 99, Fence: 1}}
	for _, l := range strangers {
		f.say(ran(l, long))
	}
	f.settled()
	check(t, "acknowledged", f.acked(), strangers)
	s.is(1, queue.Processing, "")
	s.is(2, queue.Pending, "")
	check(t, "started", f.started(), []int64{1})
	f.say(ran(lease(1), long))
	s.becomes(1, queue.Completed)
}

// A job that has not started after 50 ms is recalled and returned to the queue. A job of higher
// rank that has arrived since then goes first.
func TestWhatDoesNotStartMakesWay(t *testing.T) {
	s, f, _ := begin(t, 1)
	f.keepsQuiet()
	before := time.Now()
	s.put(0)
	drop, at := hears[*wire.Drop](t, f, 1)
	check(t, "dropped", drop.Lease, lease(1))
	if waited := at.Sub(before); waited < 50*time.Millisecond {
		t.Errorf("dropped after %v, want at least 50 ms", waited)
	}
	s.put(9)
	f.say(&wire.Dropped{Lease: drop.Lease, Dropped: true})
	hears[*wire.Start](t, f, 2)
	check(t, "started", f.started(), []int64{1, 2})
	ended, released, _ := s.endings(1)
	check(t, "ended and released", []int{ended, released}, []int{0, 1})
	check(t, "leased", s.leased(), []int64{2})
	check(t, "most at once", f.mostOpen(), 1)
}

// A job that the runner has started before the Drop arrives is kept.
func TestWhatIsNotDroppedIsKept(t *testing.T) {
	s, f, _ := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	hears[*wire.Drop](t, f, 1)
	f.say(&wire.Dropped{Lease: lease(1)}, &wire.Started{Attempt: running(lease(1))})
	s.becomes(1, queue.Processing)
	f.settled()
	check(t, "started", f.started(), []int64{1})
	check(t, "dropped", len(heard[*wire.Drop](f)), 1)
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
	f.say(ran(lease(1), long))
	s.becomes(1, queue.Completed)
	_, released, _ := s.endings(1)
	check(t, "released", released, 0)
}

// short returns the result of an attempt that could not be started.
func short(l wire.Lease) *wire.Result {
	return &wire.Result{Attempt: running(l), Shortage: true, ExitCode: -1, Error: "no more processes"}
}

// A shortage pauses claims for a second, and for twice as long each time it continues. Several jobs
// that fail in one shortage count once. A successful start ends the shortage.
func TestAShortagePausesClaims(t *testing.T) {
	_, f, _ := begin(t, 2, make([]int64, 40)...)
	begun := 0 // number of starts that were handled
	next := func() [2]wire.Lease {
		hears[*wire.Start](t, f, begun+2)
		list := heard[*wire.Start](f)[begun:]
		begun += 2
		return [2]wire.Lease{list[0].Lease, list[1].Lease}
	}
	pauses := func(least time.Duration) {
		t.Helper()
		ls := next()
		said := time.Now()
		f.say(short(ls[0]), short(ls[1]))
		_, at := hears[*wire.Start](t, f, begun+1)
		if paused := at.Sub(said); paused < least || paused > least*19/10 {
			t.Errorf("paused for %v, want %v", paused, least)
		}
	}
	pauses(time.Second)
	pauses(2 * time.Second)
	ls := next()
	f.say(ran(ls[0], long), ran(ls[1], long))
	pauses(time.Second)
}

// While the store cannot record results, the pool keeps and does not acknowledge them, and retries.
func TestAStoreThatFailsForAWhileLosesNothing(t *testing.T) {
	for _, reason := range []error{queue.ErrNoSpace, queue.ErrUnavailable} {
		t.Run(reason.Error(), func(t *testing.T) {
			s, f, p := begin(t, 2, 0, 0, 0)
			s.becomes(1, queue.Processing)
			s.becomes(2, queue.Processing)
			refused := make(chan struct{}, 1000)
			s.refuses(func(store.Report) error {
				refused <- struct{}{}
				return fmt.Errorf("record: %w", reason)
			})
			f.say(ran(lease(1), long))
			from(t, "a refusal", refused)
			f.say(ran(lease(2), long))
			from(t, "a later try", refused)
			n := len(heard[*wire.Setup](f))
			p.Refresh()
			hears[*wire.Setup](t, f, n+1)
			check(t, "acknowledged", f.acked(), []wire.Lease(nil))
			check(t, "started", f.started(), []int64{1, 2})
			s.is(1, queue.Processing, "")
			s.refuses(nil)
			s.becomes(1, queue.Completed)
			s.becomes(2, queue.Completed)
			hears[*wire.Start](t, f, 3)
			check(t, "acknowledged", f.acked(), []wire.Lease{lease(1), lease(2)})
			f.say(ran(lease(3), long))
			s.becomes(3, queue.Completed)
		})
	}
}

// A permanent error of the store ends Run, which returns it.
func TestAStoreThatIsBrokenEndsRun(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0)
	f := newRunner(t, root, "first")
	_, ended := runUnsure(t, s, root, 1)
	s.becomes(1, queue.Processing)
	broken := errors.New("the disk is on fire")
	s.refuses(func(store.Report) error { return broken })
	f.say(ran(lease(1), long))
	if err := from(t, "the end of the pool", ended); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	check(t, "acknowledged", f.acked(), []wire.Lease(nil))
}

// A graceful stop claims nothing more, whatever number of workers is requested. It lets running
// jobs finish and then ends the runner.
func TestStopLetsJobsFinish(t *testing.T) {
	s, f, p := begin(t, 1, 0, 0)
	s.becomes(1, queue.Processing)
	stopped := make(chan struct{})
	n := len(heard[*wire.Setup](f))
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), time.Hour, time.Hour)
	}()
	hears[*wire.Setup](t, f, n+1)
	p.Scale(2) // from a caller that does not know of the stop
	f.settled()
	check(t, "started while stopping", f.started(), []int64{1})
	select {
	case <-stopped:
		t.Fatal("stopped while a job runs")
	default:
	}
	f.say(ran(lease(1), long))
	from(t, "the end of Stop", stopped)
	s.is(1, queue.Completed, "")
	s.is(2, queue.Pending, "")
	check(t, "started", f.started(), []int64{1})
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
	check(t, "BYEs", len(heard[*wire.Shutdown](f)), 1)
}

// At the deadline of a stop, running jobs are ended and returned to the queue, with at most the
// grace of the stop. Jobs that have not started are taken back.
func TestStopEndsJobsAtTheDeadline(t *testing.T) {
	s, f, p := oneUnstarted(t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), 0, 2*time.Second)
	}()
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "killed", *kill, wire.Kill{Lease: lease(1), Cause: int64(queue.Stopped), Grace: 2 * time.Second})
	drop, _ := hears[*wire.Drop](t, f, 1)
	check(t, "dropped", drop.Lease, lease(2))
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end, &wire.Dropped{Lease: lease(2), Dropped: true})
	from(t, "the end of Stop", stopped)
	s.is(1, queue.Pending, queue.ReasonStopped)
	s.is(2, queue.Pending, "")
	check(t, "attempts that count", s.job(1).Attempts, 0)
	check(t, "leased", s.leased(), []int64(nil))
	check(t, "started", f.started(), []int64{1, 2})
}
