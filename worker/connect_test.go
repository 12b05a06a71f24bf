package worker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// leaseAll claims all jobs of a store, like an earlier service, and reports some of them as
// started.
func (s *hub) leaseAll(started ...int64) {
	s.t.Helper()
	ctx := context.Background()
	if _, err := s.Store.Exchange(ctx, store.Report{Want: 100}); err != nil {
		s.t.Fatal(err)
	}
	var turn store.Report
	for _, seq := range started {
		turn.Started = append(turn.Started, store.Started{Lease: queue.Lease(lease(seq)), At: 1, Worker: "w1", PID: int(pid(seq))})
	}
	if _, err := s.Store.Exchange(ctx, turn); err != nil {
		s.t.Fatal(err)
	}
}

// A pool adopts the jobs that an earlier service left in a living runner. A running job continues
// with its process, whether or not its start was recorded. A waiting job keeps its place. A result
// is settled and acknowledged. Of the jobs that the runner does not know, a claimed one returns to
// the queue and a started one is lost.
func TestAPoolAdoptsWhatAnEarlierOneLeft(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0, 0, 0, 0, 0, 0)
	const recorded, unrecorded, ended, waiting, claimed, gone = 1, 2, 3, 4, 5, 6
	s.leaseAll(recorded, ended, gone)
	before, err := s.NextEpoch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	f := newRunner(t, root, "first")
	f.quiet = true // otherwise the waiting job would be reported as started
	f.known.Attempts = []wire.Attempt{running(lease(recorded)), running(lease(unrecorded)), {Lease: lease(waiting)}}
	f.known.Ended = []wire.Lease{lease(ended)}
	f.then = []wire.Frame{ran(lease(ended), long)}
	p := run(t, s, root, 4)

	s.becomes(ended, queue.Completed)
	s.becomes(unrecorded, queue.Processing)
	for _, seq := range []int64{recorded, unrecorded} {
		j := s.job(seq)
		check(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, pid(seq)})
		check(t, "attempt that runs", p.Running(seq), 1)
	}
	s.is(gone, queue.Dead, queue.ReasonLost)
	start, _ := hears[*wire.Start](t, f, 1) // the returned job takes the worker of the ended job
	check(t, "started", start.Lease, wire.Lease{Seq: claimed, Fence: 2})
	s.is(waiting, queue.Pending, "")
	f.say(&wire.Started{Attempt: running(lease(waiting))})
	s.becomes(waiting, queue.Processing)
	f.settled()
	check(t, "started", f.started(), []int64{claimed})
	check(t, "acknowledged", f.acked(), []wire.Lease{lease(ended)})
	for _, seq := range []int64{recorded, unrecorded, waiting} {
		f.say(ran(lease(seq), long))
		s.becomes(seq, queue.Completed)
	}
	if f.epochs[0] <= before {
		t.Errorf("met with epoch %d, want more than %d", f.epochs[0], before)
	}
}

// A living runner whose connection breaks is connected again with a higher epoch. It keeps its
// running jobs and repeats its results. Of the jobs that it does not know, claimed ones return to
// the queue and started ones are lost.
func TestALivingRunnerIsMetAgain(t *testing.T) {
	s, f, p := begin(t, 3, 0, 0, 0)
	for seq := range int64(3) {
		s.becomes(seq+1, queue.Processing)
	}
	f.keepsQuiet()
	p.Scale(4)
	s.put(0)
	hears[*wire.Start](t, f, 4)
	const kept, ended, gone, claimed = 1, 2, 3, 4
	f.mu.Lock()
	f.known.Attempts = []wire.Attempt{running(lease(kept))}
	f.known.Ended = []wire.Lease{lease(ended)}
	f.then = []wire.Frame{ran(lease(ended), long)}
	f.mu.Unlock()
	f.hangUp()

	s.becomes(ended, queue.Completed)
	s.becomes(gone, queue.Dead)
	s.is(gone, queue.Dead, queue.ReasonLost)
	hears[*wire.Start](t, f, 5)
	again := heard[*wire.Start](f)[4].Lease
	check(t, "started again", again, wire.Lease{Seq: claimed, Fence: 2})
	f.settled()
	check(t, "acknowledged", f.acked(), []wire.Lease{lease(ended)})
	j := s.job(kept)
	check(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, pid(kept)})
	f.say(ran(lease(kept), long))
	s.becomes(kept, queue.Completed)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.epochs) != 2 || f.epochs[1] <= f.epochs[0] {
		t.Errorf("met with epochs %v, want two, the second higher", f.epochs)
	}
}

// If a runner dies, its started jobs are lost, its other jobs return to the queue, and a new runner
// gets the next jobs.
func TestADeadRunnerIsReplaced(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0)
	first := newRunner(t, root, "first")
	p := run(t, s, root, 1)
	s.becomes(1, queue.Processing)
	first.keepsQuiet()
	p.Scale(2)
	s.put(0)
	hears[*wire.Start](t, first, 2)
	second := newRunner(t, root, "second")
	first.die()
	start, _ := hears[*wire.Start](t, second, 1)
	check(t, "started by the second runner", start.Lease, wire.Lease{Seq: 2, Fence: 2})
	s.is(1, queue.Dead, queue.ReasonLost)
	s.becomes(2, queue.Processing)
	second.say(ran(start.Lease, long))
	s.becomes(2, queue.Completed)
}

// A dead runner's directory that cannot be removed does not end the service. On Windows this
// happens while a virus scanner or a backup reads a file in it.
func TestAFolderThatSomebodyReadsStays(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0)
	first := newRunner(t, root, "first")
	run(t, s, root, 1)
	s.becomes(1, queue.Processing)
	second := newRunner(t, root, "second")
	reader, err := os.Open(filepath.Join(first.dir, bootName))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	first.die()
	s.becomes(1, queue.Dead)
	s.put(0)
	start, _ := hears[*wire.Start](t, second, 1)
	second.say(ran(start.Lease, long))
	s.becomes(2, queue.Completed)
}

// A job that was sent to a runner whose directory is gone runs again only after that runner can no
// longer start it. The runner may be alive, so otherwise both would run it.
func TestLeasesOfAVanishedRunnerWait(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0)
	s.leaseAll()
	if err := s.NoteRunners(context.Background(), []string{filepath.Join(root, "vanished")}); err != nil {
		t.Fatal(err)
	}
	f := newRunner(t, root, "first")
	began := time.Now()
	run(t, s, root, 1)
	misses := func() bool {
		left, err := s.Left(context.Background())
		return err != nil || slices.Contains(left.Runners, filepath.Join(root, "vanished"))
	}
	if !misses() {
		t.Error("the next service would not know that a folder is gone")
	}
	start, at := hears[*wire.Start](t, f, 1)
	check(t, "started", start.Lease, wire.Lease{Seq: 1, Fence: 2})
	until(t, "all is settled", func() bool { return !misses() })
	if waited := at.Sub(began); waited < 5*time.Second {
		t.Errorf("started after %v; the vanished runner may begin it within 5s", waited)
	}
	f.say(ran(start.Lease, long))
	s.becomes(1, queue.Completed)
}

// Recovery of a dead runner does not end processes of a lease whose runner is not known yet. They
// may run in another runner, which the starting service has not connected to yet.
func TestTreesOfOthersOutliveADeadRunner(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0, 0)
	s.leaseAll(1)
	first, old := newRunner(t, root, "first"), newRunner(t, root, "old")
	old.die()
	asked := make(chan []wire.Attempt, 1)
	first.onRecover = func(f *wire.Recover) {
		if f.Name == filepath.Base(old.dir) {
			asked <- f.Attempts
		}
		first.say(&wire.Recovered{ID: f.ID, SameBoot: true})
	}
	runWith(t, s, runner.Home{Dir: root, Socket: "nobody listens"}, 2)
	check(t, "to be ended with the dead runner", from(t, "it is recovered", asked), []wire.Attempt(nil))
}

// While root's runner cleans up after a dead one, which may take long, it keeps sending frames. The
// pool receives the final answer however many frames come before it.
func TestACleanerMayHaveMuchToTell(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.put(0)
	s.leaseAll(1)
	first, old := newRunner(t, root, "first"), newRunner(t, root, "old")
	old.known.Version, old.known.Attempts = "older", []wire.Attempt{running(lease(1))}
	first.onRecover = func(f *wire.Recover) {
		for n := range int64(200) { // the pause makes the pool read each separately
			first.say(&wire.Result{Attempt: wire.Attempt{Lease: wire.Lease{Seq: nobodys + n, Fence: 1}}})
			time.Sleep(time.Millisecond)
		}
		first.say(&wire.Recovered{ID: f.ID})
	}
	runWith(t, s, runner.Home{Dir: root, Socket: "nobody listens"}, 2)
	old.die()
	forget, _ := hears[*wire.Forget](t, first, 1)
	check(t, "forgotten", forget.Name, filepath.Base(old.dir))
	first.settled()
}

// If a runner has jobs with numbers that the store has never assigned, the pool ends with ErrOlder.
// It does so whether it connects immediately or after other jobs got those numbers. The runner's
// jobs continue.
func TestARunnerTellsAnOlderStore(t *testing.T) {
	for name, late := range map[string]bool{"at once": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			s.put(0)
			f := newRunner(t, root, "first")
			f.known.Attempts = []wire.Attempt{running(lease(3))}
			if late {
				f.listener.Close()
				f.loops.Wait()
			}
			p := worker.New(s, config(runner.Home{Dir: root}), 1)
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { // ends with the pool
				ended <- p.Run(ctx, func() {
					if !late {
						return
					}
					s.put(0, 0, 0)
					var err error
					if f.listener, err = listen(f.dir); err != nil {
						t.Error(err)
					}
					f.loops.Go(f.accept)
				})
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, worker.ErrOlder) || !strings.Contains(err.Error(), "job 3") {
					t.Errorf("the pool ended: %v", err)
				}
			case <-time.After(patience):
				t.Fatal("the pool has not ended")
			}
			check(t, "ended jobs", heard[*wire.Kill](f), []*wire.Kill(nil))
		})
	}
}

// If a dismissed runner is killed before it has removed its directory, the pool removes it.
func TestDismissedRunnerIsKilled(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	old := newRunner(t, root, "1")
	old.known.Version = "another"
	newRunner(t, root, "2")
	run(t, s, root, 1)
	hears[*wire.Shutdown](t, old, 1)
	old.die()
	until(t, "its folder is gone", func() bool {
		_, err := os.Stat(old.dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}
