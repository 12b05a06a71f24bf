package queue_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// allowedStateTransitions lists, for each state, the states that can follow. The state "" means that the job is new.
var allowedStateTransitions = map[string]string{
	"":           "pending blocked held",
	"blocked":    "pending held cancelled",
	"held":       "pending blocked cancelled",
	"pending":    "processing held cancelled blocked",
	"processing": "completed failed dead cancelled pending held",
	"failed":     "processing pending held cancelled blocked",
	"completed":  "pending",
	"dead":       "pending",
	"cancelled":  "pending blocked",
}

// CanChangeTo allows exactly the listed transitions.
func TestCanChangeToMatchesTransitions(t *testing.T) {
	if got := len(queue.States()); got != len(allowedStateTransitions)-1 {
		t.Fatalf("got %d states, want %d", got, len(allowedStateTransitions)-1)
	}
	for _, from := range append([]queue.State{0}, queue.States()...) {
		allowed, known := allowedStateTransitions[from.String()]
		if !known {
			t.Fatalf("state %q is not in the contract", from)
		}
		for _, to := range append([]queue.State{0, 99}, queue.States()...) {
			want := to.String() != "" && slices.Contains(strings.Fields(allowed), to.String())
			if got := from.CanChangeTo(to); got != want {
				t.Errorf("from %q to %q: got %v, want %v", from, to, got, want)
			}
		}
	}
	if queue.State(99).CanChangeTo(queue.Pending) || queue.State(99).String() != "" {
		t.Error("an invalid state has a name or a transition")
	}
}

// IsWaiting, IsRunnable and HasEnded return true exactly for the listed states.
func TestStatePredicatesMatchListedStates(t *testing.T) {
	for _, s := range queue.States() {
		want := map[string]string{
			"blocked": "waits", "held": "waits", "pending": "waits runs", "failed": "waits runs",
			"processing": "", "completed": "ended", "dead": "ended", "cancelled": "ended",
		}[s.String()]
		var got []string
		if s.IsWaiting() {
			got = append(got, "waits")
		}
		if s.IsRunnable() {
			got = append(got, "runs")
		}
		if s.HasEnded() {
			got = append(got, "ended")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
}

// ParseStates returns the state with the given name, or several for a name like "waiting". The error for an
// unknown name suggests the most similar name.
func TestStatesAreSelectedByName(t *testing.T) {
	for _, s := range queue.States() {
		got, err := queue.ParseStates(s.String())
		if err != nil || !slices.Equal(got, []queue.State{s}) {
			t.Errorf("%s: got %v, %v", s, got, err)
		}
	}
	waiting, err := queue.ParseStates("waiting")
	slices.Sort(waiting)
	if want := []queue.State{queue.Blocked, queue.Held, queue.Pending, queue.Failed}; err != nil ||
		!slices.Equal(waiting, want) {
		t.Errorf("waiting: got %v, %v, want %v", waiting, err, want)
	}
	if done, err := queue.ParseStates("done"); err != nil || !slices.Equal(done, []queue.State{queue.Completed}) {
		t.Errorf("done: got %v, %v", done, err)
	}
	for id, want := range map[string]string{"all": "take --all instead of an id",
		"dead":    "take --state dead instead of an id",
		"running": "take --state processing instead of an id", "7": `no job "7"`} {
		if err := queue.JobNotFoundError(id); !errors.Is(err, queue.ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", id, err, want)
		}
	}
	for name, near := range map[string]string{"pendng": `"pending"`, "": "", "waitin": `"waiting"`,
		"running": "calls it processing", "queued": "calls it pending", "succeeded": "calls it completed",
		"Completed": `"completed"`} {
		_, err := queue.ParseStates(name)
		var e *queue.Error
		if !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != "state" || !strings.Contains(e.Message, near) {
			t.Errorf("%q: got %v, want invalid state naming %s", name, err, near)
		}
	}
}
