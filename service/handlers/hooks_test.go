package handlers

import (
	"context"
	"errors"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// Only operators, and the user that a hook of the settings runs as, see the jobs of that hook.
func TestSettingsHookJobsAreShownByRight(t *testing.T) {
	s := newSQLiteTestAPI(t)
	hook := draftWithID("hook")
	hook.HookEvents, hook.Queue = queue.HookJobFlag|queue.SettingsHookFlag, queue.HookQueue
	own := draftWithID("own")
	own.HookEvents, own.Queue = queue.HookJobFlag, queue.HookQueue
	s.enqueueJobs(t, hook, own)
	for _, c := range []struct {
		who  string
		ctx  context.Context
		sees bool
	}{
		{"a reader", contextAsPeer(t, 3001, control.RightRead), false},
		{"another one", contextAsPeer(t, 3002, control.RightSubmit), false},
		{"an operator", contextAsPeer(t, 3003, control.RightOperate), true},
		{"its user", contextAsPeer(t, ownerUID, control.RightSubmit),
			true},
	} {
		listed := map[string]bool{}
		if _, err := s.StreamEvents(c.ctx, control.EventsParams{},
			func(e control.Event) error { listed[e.JobID] = true; return nil }); err != nil {
			t.Fatal(err)
		}
		if !listed["own"] || listed["hook"] != c.sees {
			t.Errorf("events for %s list %v", c.who, listed)
		}
		worker := newWorkerListView([]worker.WorkerStatus{{JobID: "hook", RestrictedToUID: hook.RestrictedToUID()}}, "n",
			new(control.PeerFrom(c.ctx))).Workers[0]
		if worker.State != "busy" || (worker.Job != nil) != c.sees {
			t.Errorf("the list of workers for %s contains %+v", c.who, worker)
		}
		for id, want := range map[string]bool{"hook": c.sees, "own": true} {
			p := control.JobID(id)
			_, showErr := s.ShowJob(c.ctx, control.JobShowParams{ID: p})
			_, whyErr := s.ExplainWaiting(c.ctx, control.ExplainWaitingParams{ID: p})
			_, treeErr := s.ReadDependencyTree(c.ctx, control.DependencyTreeParams{ID: p})
			for what, err := range map[string]error{"show": showErr, "why": whyErr, "tree": treeErr} {
				if (err == nil) != want || err != nil && !errors.Is(err, queue.ErrNotFound) {
					t.Errorf("%s of %s by %s: %v", what, id, c.who, err)
				}
			}
		}
		first, err := s.ListJobs(c.ctx, control.JobListParams{PageSize: 1})
		if err != nil || len(first.Jobs) != 1 || (first.NextCursor != nil) != c.sees {
			t.Errorf("the first page of %s: %+v, %v", c.who, first, err)
		}
		jobs := map[string][]control.Job{}
		page, err := s.ListJobs(c.ctx, control.JobListParams{})
		if err != nil {
			t.Fatal(err)
		}
		screen, err := s.ReadOverviewScreen(c.ctx, control.OverviewScreenParams{JobsPerSection: 10})
		if err != nil {
			t.Fatal(err)
		}
		next, err := s.SimulateNextStarts(c.ctx, control.SimulateParams{})
		if err != nil {
			t.Fatal(err)
		}
		jobs["list"], jobs["screen"], jobs["simulate"] = page.Jobs, screen.Ready, next.Jobs
		for what, list := range jobs {
			if want := map[bool]int{true: 2, false: 1}[c.sees]; len(list) != want {
				t.Errorf("%s has %d jobs for %s, want %d", what, len(list), c.who, want)
			}
		}
	}
}

// If an admin sees another user's environment, an audit event records this. A job that is shown without its
// environment causes no event.
func TestShowWithoutEnvironmentIsNotAudited(t *testing.T) {
	s := newSQLiteTestAPI(t)
	j := draftWithID("a")
	j.Env = []string{"A=secret"}
	s.enqueueJobs(t, j)
	for _, c := range []struct {
		without bool
		env     string
	}{{true, "***"}, {false, "secret"}} {
		before, _ := s.Store.LastEventSeq()
		d, err := s.ShowJob(contextAsPeer(t, 3004, control.RightAdmin), control.JobShowParams{ID: "a", HideEnv: c.without})
		after, _ := s.Store.LastEventSeq()
		if env, _ := d.Spec["env"].(map[string]string); err != nil || env["A"] != c.env || (before == after) != c.without {
			t.Errorf("without %t: %v, %v, recorded %t", c.without, d.Spec["env"], err, before != after)
		}
	}
}
