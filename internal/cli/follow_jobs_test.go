package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// eventQueue fakes a queue with jobs that all wait. It sends the events that it receives from a channel.
type eventQueue struct {
	control.API
	events     chan control.Event // closed when the connection is lost
	sinceEvent int64              // the value of Since in the request for events
	testEnded  chan struct{}      // closed at the end of the test
}

func (q *eventQueue) Events(ctx context.Context, p control.Events, handleEvent func(control.Event) error) (
	control.EventsEnd,
	error) {
	q.sinceEvent = *p.Since
	for {
		select {
		case e, open := <-q.events:
			if !open {
				return control.EventsEnd{}, queue.Errorf(queue.CodeUnavailable, "the service stops")
			}
			if err := handleEvent(e); err != nil {
				return control.EventsEnd{}, err
			}
		case <-q.testEnded:
			return control.EventsEnd{}, ctx.Err()
		}
	}
}

func (q *eventQueue) Show(_ context.Context, p control.Show) (control.JobDetail, error) {
	return control.JobDetail{Job: control.Job{ID: string(p.ID), State: "pending",
		WaitsFor: &control.Reason{Text: "no workers", Advice: "queuectl worker start"}}}, nil
}

func (q *eventQueue) Right(*control.Peer) control.Right                       { return control.RightAdmin }
func (q *eventQueue) Admit(context.Context, *control.Peer) error              { return nil }
func (q *eventQueue) RefusalError(*control.Peer, string, control.Right) error { return queue.ErrDenied }

// twoFollowedJobs fakes a set of two jobs, with the sequence numbers 1 and 2. Job 2 waits.
type twoFollowedJobs struct {
	recordedEvents []int64     // numbers of the events that were handled
	dueCheckCount  int         // number of calls of IsDone with isCheckDue true
	doneWhenDue    atomic.Bool // the next IsDone with isCheckDue true returns true
}

func (j *twoFollowedJobs) HandleEvent(_ context.Context, e *control.Event) (isOurs bool, err error) {
	j.recordedEvents = append(j.recordedEvents, e.Seq)
	return e.JobSeq <= 2, nil
}

func (j *twoFollowedJobs) IsDone(_ context.Context, isCheckDue bool) (bool, error) {
	if isCheckDue {
		j.dueCheckCount++
	}
	return len(j.recordedEvents) == 4 || isCheckDue && j.doneWhenDue.Load(), nil
}

func (j *twoFollowedJobs) WaitingJobID(context.Context) string { return "two" }
func (j *twoFollowedJobs) Progress() *JobsProgress             { return nil }

// A Follower handles every event once, in order. It stops when the set has ended, when Wake is closed, or when the
// connection is lost. If no event about the set arrives for waitReasonDelay, the Follower prints once why a job waits.
func TestFollowerFollowsASetOfJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow := func(run func(q *eventQueue, jobs *twoFollowedJobs, stop func())) (*twoFollowedJobs, string, error) {
			q, jobs, wake := &eventQueue{events: make(chan control.Event), testEnded: make(chan struct{})}, &twoFollowedJobs{},
				make(chan struct{})
			defer close(q.testEnded)
			many := func() (all, user int) { return 9, 9 }
			c := control.NewServer(q, control.Limits{MaxConnections: many}, q, control.NewUserLimits(),
				slog.New(slog.DiscardHandler)).ClientAs(control.Peer{})
			defer c.Close()
			stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			f := Follower{App: NewApp(Program{}, nil, nil, stderr), Client: c, Wake: wake}
			done := make(chan error, 1)
			go func() { done <- f.Follow(t.Context(), jobs, 41) }()
			run(q, jobs, func() { jobs.doneWhenDue.Store(true); close(wake) })
			err = <-done
			if q.sinceEvent != 41 {
				t.Errorf("the events after %d were requested, want 41", q.sinceEvent)
			}
			printed, _ := os.ReadFile(stderr.Name())
			return jobs, string(printed), err
		}
		const why = "queuectl: job two is waiting: no workers; next step: queuectl worker start\n"

		jobs, printed, err := follow(func(q *eventQueue, _ *twoFollowedJobs, _ func()) {
			for i := range int64(4) {
				q.events <- control.Event{Seq: 42 + i, JobSeq: 1}
			}
		})
		if want := []int64{42, 43, 44, 45}; err != nil || !slices.Equal(jobs.recordedEvents, want) || printed != "" {
			t.Errorf("four events: got %v, %q, %v, want %v", jobs.recordedEvents, printed, err, want)
		}

		_, printed, err = follow(func(q *eventQueue, _ *twoFollowedJobs, stop func()) {
			time.Sleep(waitReasonDelay * 3 / 4)
			q.events <- control.Event{Seq: 42, JobSeq: 2} // about a job of the set, so it counts as progress
			time.Sleep(waitReasonDelay * 3 / 4)
			q.events <- control.Event{Seq: 43, JobSeq: 9} // about another job, so it does not count as progress
			time.Sleep(waitReasonDelay * 3 / 4)
			stop()
		})
		if err != nil || printed != why {
			t.Errorf("no progress: got %q, %v, want %q", printed, err, why)
		}

		began := time.Now()
		jobs, _, err = follow(func(_ *eventQueue, _ *twoFollowedJobs, stop func()) {
			synctest.Wait()
			stop()
		})
		if took := time.Since(began); err != nil || took > 0 || jobs.dueCheckCount != 2 {
			t.Errorf("woken: stopped after %v and %d checks, %v, want 0s and 2 checks", took, jobs.dueCheckCount, err)
		}

		_, _, err = follow(func(q *eventQueue, _ *twoFollowedJobs, _ func()) { close(q.events) })
		if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "the service stops") {
			t.Errorf("lost connection: got %v", err)
		}
	})
}
