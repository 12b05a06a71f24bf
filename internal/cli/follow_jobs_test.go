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

// fakeEventQueue fakes a queue with jobs that all wait. It sends the events that it receives from a channel.
type fakeEventQueue struct {
	control.API
	events            chan control.Event // closed when the connection is lost
	requestedAfterSeq int64              // the value of AfterSeq in the request for events
	testEnded         chan struct{}      // closed at the end of the test
}

func (q *fakeEventQueue) StreamEvents(ctx context.Context, p control.EventsParams,
	handleEvent func(control.Event) error) (
	control.EventStreamEnd,
	error) {
	q.requestedAfterSeq = *p.AfterSeq
	for {
		select {
		case e, open := <-q.events:
			if !open {
				return control.EventStreamEnd{}, queue.Errorf(queue.CodeUnavailable, "the service stops")
			}
			if err := handleEvent(e); err != nil {
				return control.EventStreamEnd{}, err
			}
		case <-q.testEnded:
			return control.EventStreamEnd{}, ctx.Err()
		}
	}
}

func (q *fakeEventQueue) ShowJob(_ context.Context, p control.JobShowParams) (control.JobDetail, error) {
	return control.JobDetail{Job: control.Job{ID: string(p.ID), State: "pending",
		MainWaitReason: &control.WaitReason{Text: "no workers", Advice: "queuectl worker start"}}}, nil
}

func (q *fakeEventQueue) CurrentRight(*control.Peer) control.Right             { return control.RightAdmin }
func (q *fakeEventQueue) AdmitConnection(context.Context, *control.Peer) error { return nil }
func (q *fakeEventQueue) MissingRightError(*control.Peer, string, control.Right) error {
	return queue.ErrDenied
}

// fakeFollowedJobs fakes a set of two jobs, with the sequence numbers 1 and 2. Job 2 is waiting to start.
type fakeFollowedJobs struct {
	handledEventSeqs      []int64     // numbers of the events that were handled
	slowCheckCount        int         // number of calls of IsDone with slowCheckAllowed true
	nextSlowCheckSucceeds atomic.Bool // the next IsDone with slowCheckAllowed true returns true
}

func (j *fakeFollowedJobs) HandleEvent(_ context.Context, e *control.Event) (isRelevant bool, err error) {
	j.handledEventSeqs = append(j.handledEventSeqs, e.Seq)
	return e.JobSeq <= 2, nil
}

func (j *fakeFollowedJobs) IsDone(_ context.Context, slowCheckAllowed bool) (bool, error) {
	if slowCheckAllowed {
		j.slowCheckCount++
	}
	return len(j.handledEventSeqs) == 4 || slowCheckAllowed && j.nextSlowCheckSucceeds.Load(), nil
}

func (j *fakeFollowedJobs) WaitingJobID(context.Context) string { return "two" }
func (j *fakeFollowedJobs) Progress() *JobsProgress             { return nil }

// A Follower handles every event once, in order. It stops when IsDone returns true after an event, when CheckDoneNow is
// closed and IsDone returns true, or when the connection is lost. If no event about the set arrives for
// waitReasonDelay, the Follower prints once why a job waits.
func TestFollowerHandlesEventsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow := func(run func(q *fakeEventQueue, jobs *fakeFollowedJobs, stop func())) (*fakeFollowedJobs, string, error) {
			q, jobs, wake := &fakeEventQueue{events: make(chan control.Event), testEnded: make(chan struct{})},
				&fakeFollowedJobs{},
				make(chan struct{})
			defer close(q.testEnded)
			many := func() (all, user int) { return 9, 9 }
			c := control.NewServer(q, control.ConnectionLimits{MaxConnections: many}, q, control.NewUserLimits(),
				slog.New(slog.DiscardHandler)).InProcessClientAs(control.Peer{})
			defer c.Close()
			stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			f := Follower{App: NewApp(Program{}, nil, nil, stderr), Client: c, CheckDoneNow: wake}
			done := make(chan error, 1)
			go func() { done <- f.Follow(t.Context(), jobs, 41) }()
			run(q, jobs, func() { jobs.nextSlowCheckSucceeds.Store(true); close(wake) })
			err = <-done
			if q.requestedAfterSeq != 41 {
				t.Errorf("the events after %d were requested, want 41", q.requestedAfterSeq)
			}
			printed, _ := os.ReadFile(stderr.Name())
			return jobs, string(printed), err
		}
		const why = "queuectl: job two is waiting: no workers; next step: queuectl worker start\n"

		jobs, printed, err := follow(func(q *fakeEventQueue, _ *fakeFollowedJobs, _ func()) {
			for i := range int64(4) {
				q.events <- control.Event{Seq: 42 + i, JobSeq: 1}
			}
		})
		if want := []int64{42, 43, 44, 45}; err != nil || !slices.Equal(jobs.handledEventSeqs, want) || printed != "" {
			t.Errorf("four events: got %v, %q, %v, want %v", jobs.handledEventSeqs, printed, err, want)
		}

		_, printed, err = follow(func(q *fakeEventQueue, _ *fakeFollowedJobs, stop func()) {
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
		jobs, _, err = follow(func(_ *fakeEventQueue, _ *fakeFollowedJobs, stop func()) {
			synctest.Wait()
			stop()
		})
		if took := time.Since(began); err != nil || took > 0 || jobs.slowCheckCount != 2 {
			t.Errorf("woken: stopped after %v and %d checks, %v, want 0s and 2 checks", took, jobs.slowCheckCount, err)
		}

		_, _, err = follow(func(q *fakeEventQueue, _ *fakeFollowedJobs, _ func()) { close(q.events) })
		if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "the service stops") {
			t.Errorf("lost connection: got %v", err)
		}
	})
}
