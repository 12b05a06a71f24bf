package worker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// verdict is the result of Cancel and similar calls.
type verdict struct {
	leased bool
	err    error
}

// cancels cancels a job in the background on behalf of uid 7.
func cancels(p *worker.Pool, seq int64) <-chan verdict {
	answer := make(chan verdict, 1)
	go func() {
		leased, err := p.Cancel(context.Background(), seq, 7)
		answer <- verdict{leased, err}
	}()
	return answer
}

// waits checks that a Cancel has not answered yet.
func waits(t *testing.T, answer <-chan verdict, when string) {
	t.Helper()
	select {
	case v := <-answer:
		t.Errorf("Cancel answered %+v %s", v, when)
	default:
	}
}

// Cancel takes back a job that waits in the runner, and returns after the cancellation is stored.
func TestCancelTakesBackWhatHasNotStarted(t *testing.T) {
	s, f, p := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	// The pool recalls the job anyway. The test answers only after the Cancel.
	hears[*wire.Drop](t, f, 1)
	answer := cancels(p, 1)
	drop, _ := hears[*wire.Drop](t, f, 2)
	f.settled()
	waits(t, answer, "while the job waits")
	f.say(&wire.Dropped{Lease: drop.Lease, Dropped: true})
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
	s.is(1, queue.Cancelled, "")
	ended, released, cancelled := s.endings(1)
	check(t, "ended, released, cancelled", []int{ended, released, cancelled}, []int{0, 0, 1})
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
}

// Cancel kills a running job with the job's own grace, and returns only after its end is stored.
func TestCancelEndsWhatRuns(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	answer := cancels(p, 1)
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "killed", *kill, wire.Kill{Lease: lease(1), Cause: int64(queue.Killed), Grace: 3 * time.Second})
	release := s.holdUp()
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end)
	until(t, "its turn had begun", s.holdsOne)
	waits(t, answer, "before the end was stored")
	release()
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
	s.is(1, queue.Cancelled, queue.ReasonCancelled)
	s.endedBy(1, 7, "cancel")
	check(t, "dropped", len(heard[*wire.Drop](f)), 0)
}

// A job that starts while Cancel takes it back is then killed.
func TestCancelKillsWhatStartsMeanwhile(t *testing.T) {
	s, f, p := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	hears[*wire.Drop](t, f, 1)
	answer := cancels(p, 1)
	hears[*wire.Drop](t, f, 2)
	f.say(&wire.Dropped{Lease: lease(1)})
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "killed", *kill, wire.Kill{Lease: lease(1), Cause: int64(queue.Killed), Grace: 3 * time.Second})
	waits(t, answer, "before the end")
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end)
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
	s.is(1, queue.Cancelled, queue.ReasonCancelled)
}

// Cancel also returns if the job ends by itself first; the job keeps that end. A caller whose
// context ends gets the context's error. Cancelling a job that is not leased returns immediately.
func TestCancelAnswersHoweverTheJobEnds(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	answer := cancels(p, 1)
	hears[*wire.Kill](t, f, 1)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	leased, err := p.Cancel(gone, 1, 7)
	check(t, "answer to who is gone", verdict{leased, err}, verdict{true, context.Canceled})
	f.say(ran(lease(1), long))
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
	s.is(1, queue.Completed, "")
	check(t, "answer of a job that is not leased", from(t, "an answer", cancels(p, 1)), verdict{false, nil})
}

// A watched job is watched whether it already runs or starts later, until the watch is stopped.
func TestAWatchedJobIsWatchedWheneverItRuns(t *testing.T) {
	s, f, p := begin(t, 1, 0, 0, 0)
	s.becomes(1, queue.Processing)
	p.Watch(1)
	watch, _ := hears[*wire.Watch](t, f, 1)
	check(t, "watched", watch.Lease, lease(1))
	p.Watch(2)
	p.Watch(3)()
	f.say(ran(lease(1), long))
	watch, _ = hears[*wire.Watch](t, f, 2)
	check(t, "watched", watch.Lease, lease(2))
	s.becomes(2, queue.Processing)
	f.say(ran(lease(2), long))
	s.becomes(3, queue.Processing)
	check(t, "watched", len(heard[*wire.Watch](f)), 2)
}

// A read that waits for output ends with the lease, even if the runner never answers it. The lease
// may end because the job returns to the queue or because the attempt ends.
func TestAReadEndsWithItsLease(t *testing.T) {
	for name, end := range map[string]wire.Frame{
		"given back": &wire.Dropped{Lease: lease(1), Dropped: true},
		"ended":      ran(lease(1), long),
	} {
		t.Run(name, func(t *testing.T) {
			s, f, p := begin(t, 1)
			f.keepsQuiet()
			f.keepsDeaf(true)
			s.put(0)
			hears[*wire.Drop](t, f, 1)
			answer := make(chan verdict, 1)
			go func() { // ends with the lease or the test
				_, ok, err := p.Read(t.Context(), 1, [2]int64{}, true)
				answer <- verdict{ok, err}
			}()
			read, _ := hears[*wire.Read](t, f, 1)
			check(t, "read", []any{read.Lease, read.Wait}, []any{lease(1), true})
			f.say(end)
			check(t, "answer", from(t, "the end of the read", answer), verdict{false, nil})
		})
	}
}

// If more jobs run than workers are wanted, Settle ends the youngest at the deadline and returns
// them to the queue. The oldest continue.
func TestSettleEndsTheYoungest(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	p.Scale(2)
	s.put(0)
	s.becomes(2, queue.Processing)
	p.Scale(1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Settle(t.Context(), 0, nil)
	}()
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "killed", *kill, wire.Kill{Lease: lease(2), Cause: int64(queue.Stopped), Grace: 3 * time.Second})
	end := ran(lease(2), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end)
	from(t, "the end of Settle", done)
	s.is(1, queue.Processing, "")
	s.is(2, queue.Pending, queue.ReasonStopped)
	check(t, "killed", len(heard[*wire.Kill](f)), 1)
}

// waited is a context that reports when a caller waits for it.
type waited struct {
	context.Context
	begun chan struct{}
}

// Done implements context.Context.
func (w waited) Done() <-chan struct{} {
	w.begun <- struct{}{}
	return w.Context.Done()
}

// If the number of workers is raised during Settle, the jobs keep running.
func TestSettleSparesWhoIsWantedAgain(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	p.Scale(2)
	s.put(0)
	s.becomes(2, queue.Processing)
	p.Scale(1)
	done, waits := make(chan error), waited{t.Context(), make(chan struct{}, 9)}
	go func() { done <- p.Settle(waits, 100*time.Millisecond, nil) }()
	from(t, "its first look", waits.begun)
	p.Scale(2)
	check(t, "the end of Settle", from(t, "the end of Settle", done), nil)
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
	f.say(ran(lease(1), long), ran(lease(2), long))
	f.settled()
}

// Change of a job that waits in the runner is stored together with its return. If the job has
// started in the meantime, it is left alone and Change returns ErrRuns.
func TestChangeTakesBackWhatHasNotStarted(t *testing.T) {
	s, f, p := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	hears[*wire.Drop](t, f, 1)
	asks := func(verb queue.Verb) <-chan verdict {
		answer := make(chan verdict, 1)
		go func() {
			done, err := p.Change(context.Background(), 1, store.Change{Verb: verb, UID: 7})
			answer <- verdict{done, err}
		}()
		return answer
	}
	answer := asks(queue.VerbHold)
	hears[*wire.Drop](t, f, 2)
	f.say(&wire.Dropped{Lease: lease(1)})
	check(t, "answer of one that has started", from(t, "an answer", answer), verdict{true, worker.ErrRuns})
	check(t, "answer the next time", from(t, "an answer", asks(queue.VerbHold)), verdict{true, worker.ErrRuns})
	check(t, "killed", len(heard[*wire.Kill](f)), 0)
	f.say(ran(lease(1), long))
	s.becomes(1, queue.Completed)
	check(t, "answer of one that is not leased", from(t, "an answer", asks(queue.VerbHold)), verdict{false, nil})

	s.put(0)
	drop, _ := hears[*wire.Drop](t, f, 3)
	held := make(chan error, 1)
	go func() {
		_, err := p.Change(context.Background(), 2, store.Change{Verb: queue.VerbHold, UID: 7})
		held <- err
	}()
	hears[*wire.Drop](t, f, 4)
	f.say(&wire.Dropped{Lease: drop.Lease, Dropped: true})
	if err := from(t, "an answer", held); err != nil {
		t.Error(err)
	}
	s.is(2, queue.Held, "")
	check(t, "leased", len(s.leased()), 0)
}

// If the end of a job is being stored, Change waits for that and reports that the job is not
// leased.
func TestChangeWaitsForAnEnd(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	release := s.holdUp()
	f.say(ran(lease(1), long))
	until(t, "the end is being stored", s.holdsOne)
	answer := make(chan verdict, 1)
	asks := make(chan struct{})
	go func() {
		close(asks)
		done, err := p.Change(context.Background(), 1, store.Change{Verb: queue.VerbRemove})
		answer <- verdict{done, err}
	}()
	<-asks
	release()
	check(t, "answer", from(t, "an answer", answer), verdict{false, nil})
	s.is(1, queue.Completed, "")
}

// If the store refuses a change, the caller gets the error and the job returns to the queue.
func TestChangeIsRefusedToWhoAsked(t *testing.T) {
	s, f, p := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	drop, _ := hears[*wire.Drop](t, f, 1)
	answer := make(chan error, 1)
	go func() {
		_, err := p.Change(context.Background(), 1, store.Change{Verb: queue.VerbEdit, Edit: func(*queue.Job) error { return queue.Invalid("priority", "no") }})
		answer <- err
	}()
	hears[*wire.Drop](t, f, 2)
	f.say(&wire.Dropped{Lease: drop.Lease, Dropped: true})
	if err := from(t, "an answer", answer); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("got %v, want what the store says", err)
	}
	hears[*wire.Start](t, f, 2)
}

// If the attempt ends by itself first, Requeue returns ErrOtherwise.
func TestRequeueOfWhatEndsByItself(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	answer := make(chan verdict, 1)
	go func() {
		held, err := p.Requeue(context.Background(), 1, 7)
		answer <- verdict{held, err}
	}()
	hears[*wire.Kill](t, f, 1)
	f.say(ran(lease(1), long))
	check(t, "answer", from(t, "an answer", answer), verdict{true, worker.ErrOtherwise})
}

// Requeue ends a running job and returns it to the queue. The attempt does not count.
func TestRequeueGivesBackWhatRuns(t *testing.T) {
	s, f, p := begin(t, 1, 0)
	s.becomes(1, queue.Processing)
	got, err := p.Signal(t.Context(), 1, 10)
	check(t, "got the signal", verdict{got, err}, verdict{true, nil})
	signal, _ := hears[*wire.Signal](t, f, 1)
	check(t, "signal", *signal, wire.Signal{Lease: lease(1), Number: 10})
	got, err = p.Signal(t.Context(), 2, 10)
	check(t, "signal to a job that does not run", verdict{got, err}, verdict{false, nil})
	answer := make(chan verdict, 1)
	go func() {
		held, err := p.Requeue(context.Background(), 1, 7)
		answer <- verdict{held, err}
	}()
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "killed", *kill, wire.Kill{Lease: lease(1), Cause: int64(queue.Stopped), Grace: 3 * time.Second})
	f.keepsQuiet()
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end)
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
	if j := s.job(1); j.Attempts != 0 || j.Runs != 1 {
		t.Errorf("attempts %d, runs %d, want 0, 1", j.Attempts, j.Runs)
	}
	s.endedBy(1, 7, "requeue")
}

// Each of several callers that request something of one job gets an answer. If the job has started
// in the meantime, Change returns ErrRuns and Cancel ends the job.
func TestEveryAskerIsAnswered(t *testing.T) {
	s, f, p := begin(t, 1)
	f.keepsQuiet()
	s.put(0)
	hears[*wire.Drop](t, f, 1)
	held := make(chan error, 1)
	go func() {
		_, err := p.Change(context.Background(), 1, store.Change{Verb: queue.VerbHold})
		held <- err
	}()
	hears[*wire.Drop](t, f, 2)
	cancelled := cancels(p, 1)
	f.settled()
	f.say(&wire.Dropped{Lease: lease(1)})
	if err := from(t, "an answer", held); !errors.Is(err, worker.ErrRuns) {
		t.Errorf("hold: %v, want %v", err, worker.ErrRuns)
	}
	kill, _ := hears[*wire.Kill](t, f, 1)
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.say(end)
	check(t, "answer", from(t, "an answer", cancelled), verdict{true, nil})
	s.is(1, queue.Cancelled, queue.ReasonCancelled)
}

// Outputs that only runners can delete are deleted once one of each folder has said so:
// Purge fails if no runner of some directory answers, or if no runner is connected.
func TestPurgeIsAnswered(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	foreign := runner.Home{Dir: root, Socket: "of nobody"}
	if worker.New(newStore(t), worker.Config{Runners: foreign}, 1).Purge(t.Context(), []string{"1-1"}) {
		t.Error("deleted by no runner")
	}
	if err := os.Mkdir(filepath.Join(root, "as-x"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	s.put(0)
	if _, err := s.Exchange(t.Context(), store.Report{Want: 1}); err != nil {
		t.Fatal(err)
	}
	first, other := newRunner(t, root, "1"), newRunner(t, filepath.Join(root, "as-x"), "2")
	other.known.Attempts = []wire.Attempt{running(lease(1))} // otherwise the pool ends it
	if err := s.NoteRunners(t.Context(), []string{other.dir}); err != nil {
		t.Fatal(err)
	}
	p, _ := runWith(t, s, foreign, 1)
	refs := []string{"1-1", "2-1"}
	check(t, "deleted while both answer", p.Purge(t.Context(), refs), true)
	for _, f := range []*fakeRunner{first, other} {
		asked, _ := hears[*wire.Purge](t, f, 1)
		check(t, "asked for", asked.Refs, refs)
	}
	for _, f := range []*fakeRunner{first, other} {
		f.keepsDeaf(true)
		check(t, "deleted while one is silent", p.Purge(t.Context(), refs), false)
		f.keepsDeaf(false)
	}
	check(t, "deleted once both answer", p.Purge(t.Context(), refs), true)
}

// A user who ends another user's job waits no longer than a stop does, even if the job sets a
// longer kill_after.
func TestOthersWaitNoLongerThanAStop(t *testing.T) {
	s, f, p := begin(t, 1)
	drafts := []queue.Job{{MaxAttempts: 1, ExitCode: -1, Execution: queue.Execution{Argv: []string{"true"}, KillAfter: 1000 * time.Hour}}}
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	s.becomes(1, queue.Processing)
	answer := cancels(p, 1)
	kill, _ := hears[*wire.Kill](t, f, 1)
	check(t, "grace", kill.Grace, runner.StopGrace())
	end := ran(lease(1), long)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 9, -1
	f.say(end)
	check(t, "answer", from(t, "an answer", answer), verdict{true, nil})
}

// Outputs are deleted by the newest runner of a folder that answers.
func TestPurgeByTheNewestThatAnswers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	foreign := runner.Home{Dir: root, Socket: "of nobody"}
	s := newStore(t)
	s.put(0)
	if _, err := s.Exchange(t.Context(), store.Report{Want: 1}); err != nil {
		t.Fatal(err)
	}
	old, newest := newRunner(t, root, "1"), newRunner(t, root, "2")
	old.known.Version = "older"
	old.known.Attempts = []wire.Attempt{running(lease(1))} // otherwise the pool ends it
	p, _ := runWith(t, s, foreign, 1)
	refs := []string{"1-1"}
	check(t, "deleted while both answer", p.Purge(t.Context(), refs), true)
	check(t, "asked", []int{len(heard[*wire.Purge](old)), len(heard[*wire.Purge](newest))}, []int{0, 1})
	newest.keepsDeaf(true)
	check(t, "deleted while the newest hangs", p.Purge(t.Context(), refs), true)
}
