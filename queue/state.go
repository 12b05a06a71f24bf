// Package queue says what a job is, how it may move, and what an outcome means
// for it. It is pure: no I/O, no clock, no randomness, no goroutines.
package queue

import (
	"cmp"
	"slices"
	"strings"
)

// State is where a job stands. The zero State belongs to no stored job. States
// below Processing wait; states above it have ended.
type State uint8

// The states, in the order the store keeps them: waiting, running, ended.
const (
	Blocked State = iota + 1
	Held
	Pending
	Failed
	Processing
	Completed
	Dead
	Cancelled
)

var stateNames = [...]string{
	Blocked:    "blocked",
	Held:       "held",
	Pending:    "pending",
	Failed:     "failed",
	Processing: "processing",
	Completed:  "completed",
	Dead:       "dead",
	Cancelled:  "cancelled",
}

// moves is the state table: what each state may become. State 0 is a new job.
var moves = [...][]State{
	0:          {Pending, Blocked, Held},
	Blocked:    {Pending, Held, Cancelled},
	Held:       {Pending, Blocked, Cancelled},
	Pending:    {Processing, Held, Blocked, Cancelled},
	Processing: {Completed, Failed, Dead, Cancelled, Pending, Held},
	Failed:     {Processing, Pending, Held, Blocked, Cancelled},
	Completed:  {Pending},
	Dead:       {Pending},
	Cancelled:  {Pending, Blocked},
}

// States lists every state in its fixed order.
func States() []State {
	return []State{Blocked, Held, Pending, Failed, Processing, Completed, Dead, Cancelled}
}

// String is the state's name on the wire, "" for the zero State.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return ""
}

// May reports whether the state table lets s become to.
func (s State) May(to State) bool {
	return int(s) < len(moves) && slices.Contains(moves[s], to)
}

// Waiting reports whether a job in s has yet to run.
func (s State) Waiting() bool { return s > 0 && s < Processing }

// Ended reports whether a job in s will not run unless a person revives it.
func (s State) Ended() bool { return s > Processing }

// Runnable reports whether a job in s runs when its time and turn come.
func (s State) Runnable() bool { return s == Pending || s == Failed }

// ParseStates reads the name of one state, or "waiting" (pending, failed,
// blocked and held) or "done" (completed). An unknown name is ErrInvalid and
// names the nearest known one.
func ParseStates(name string) ([]State, error) {
	switch name {
	case "waiting":
		return []State{Blocked, Held, Pending, Failed}, nil
	case "done":
		return []State{Completed}, nil
	}
	for s, n := range stateNames {
		if n == name && n != "" {
			return []State{State(s)}, nil
		}
	}
	if meant := StateMeant(name); meant != "" {
		return nil, Invalid("state", "unknown state %q; queuectl calls it %s", name, meant)
	}
	known := append(slices.Clone(stateNames[1:]), "waiting", "done")
	return nil, Invalid("state", "unknown state %q%s", Clip(name), cmp.Or(Nearest(name, known), "; use one of "+strings.Join(known, ", ")))
}

// StateMeant returns the name of the state that a word names, here or in other programs. It returns "" if none.
func StateMeant(word string) string {
	switch word {
	case "running", "active", "started", "executing":
		return Processing.String()
	case "queued", "ready":
		return Pending.String()
	case "succeeded", "success", "successful":
		return Completed.String()
	case "stashed", "suspended":
		return Held.String()
	case "error", "errored":
		return Failed.String()
	}
	if word == "waiting" || word == "done" || word != "" && slices.Contains(stateNames[:], word) {
		return word
	}
	return ""
}

// Reason says why a job or attempt is in its state, where the state alone does
// not. "" means there is nothing to add.
type Reason string

// The reasons. They are never states.
const (
	ReasonTimedOut    Reason = "timed_out"    // ended by its timeout
	ReasonSignal      Reason = "signal"       // ended by a signal that queuectl did not send
	ReasonOOM         Reason = "oom_killed"   // the kernel killed it, because memory ran out
	ReasonNotFound    Reason = "not_found"    // exit code 127
	ReasonNotRunnable Reason = "not_runnable" // exit code 126: not executable, or a bad cwd, stdin_file or env_secret
	ReasonLost        Reason = "lost"         // its runner died on a machine that lived on
	ReasonInterrupted Reason = "interrupted"  // the machine went down
	ReasonDeferred    Reason = "deferred"     // its exit code asked to be run later
	ReasonStopped     Reason = "stopped"      // the service was told to stop it
	ReasonShortage    Reason = "shortage"     // we had no process, memory or descriptor for it
	ReasonExpired     Reason = "expired"      // not started by expires_at
	ReasonUnkillable  Reason = "unkillable"   // it outlived SIGKILL
	ReasonPoison      Reason = "poison"       // runners died of it
	ReasonCancelled   Reason = "cancelled"    // a person cancelled it while it ran
	ReasonDependency  Reason = "dependency"   // a job that it waits for ended otherwise, or was removed
	ReasonReplaced    Reason = "replaced"     // another job took its unique key, or its place in a schedule
	ReasonDisowned    Reason = "disowned"     // the uid of its owner belongs to another account now
)
