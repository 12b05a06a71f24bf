// Package queue defines what a job is, how its state may change and what the outcome of an attempt means for
// it. It has no I/O, no clock, no randomness and no goroutines.
//
// Start with Job and State. ResolveSpec turns a Spec (a user's request) into a Job. DecideAfterAttempt turns the
// outcome of an attempt into the job's next state. Verb.EffectOn applies a user's action to a job.
package queue

import (
	"cmp"
	"slices"
	"strings"
)

// State is the state of a job. No stored job has the zero State. A job waits if its state is a number below Processing,
// and has ended if its state is a number above Processing.
type State uint8

// These are the states. The numbers are stored and compared, so they must not change.
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

// allowedTransitions is the state table: for each state, it lists the states that can follow. State 0 means that the
// job is new.
var allowedTransitions = [...][]State{
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

// States returns all states, in the order of the documentation.
func States() []State {
	return []State{Blocked, Held, Pending, Failed, Processing, Completed, Dead, Cancelled}
}

// String returns the name of the state in the protocol. It returns "" for the zero State.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return ""
}

// StateNames returns the names of the given states, in the same order.
func StateNames(states []State) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = s.String()
	}
	return names
}

// CanChangeTo reports whether the state table allows the transition from s to next.
func (s State) CanChangeTo(next State) bool {
	return int(s) < len(allowedTransitions) && slices.Contains(allowedTransitions[s], next)
}

// IsWaiting reports whether a job in state s has not started yet, or waits for a retry.
func (s State) IsWaiting() bool { return s > 0 && s < Processing }

// HasEnded reports whether a job in state s has ended. An ended job runs again only if a user retries it.
func (s State) HasEnded() bool { return s > Processing }

// IsRunnable reports whether a job in state s can start when it is due and a worker is free.
func (s State) IsRunnable() bool { return s == Pending || s == Failed }

// ParseStates returns the states that a name selects. Most names select one state. The name "waiting" selects pending,
// failed, blocked and held, and "done" selects completed. For an unknown name, the error is an ErrInvalid that suggests
// the most similar name.
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
	if meant := StateNameForWord(name); meant != "" {
		return nil, InvalidFieldError("state", "unknown state %q; queuectl calls it %s", name, meant)
	}
	known := append(slices.Clone(stateNames[1:]), "waiting", "done")
	return nil, InvalidFieldError("state", "unknown state %q%s", ClipForMessage(name),
		cmp.Or(DidYouMean(name, known), "; use one of "+strings.Join(known, ", ")))
}

// StateNameForWord returns the name of a state for a word that other programs use for this state. For example, it
// returns processing for "running". It returns "" if it does not know the word.
func StateNameForWord(word string) string {
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

// Reason says why a job or attempt is in its state, if the state alone does not show that. Otherwise it is "".
type Reason string

// These are the reasons. None of them is also the name of a state.
const (
	ReasonTimedOut Reason = "timed_out"  // the attempt was ended by its timeout
	ReasonSignal   Reason = "signal"     // the attempt was ended by a signal that queuectl did not send
	ReasonOOM      Reason = "oom_killed" // the kernel killed the attempt because memory ran out
	ReasonNotFound Reason = "not_found"  // exit code 127
	// ReasonNotRunnable means exit code 126: the file is not executable, or the job's cwd, stdin_file or
	// env_secret cannot be used.
	ReasonNotRunnable      Reason = "not_runnable"
	ReasonLost             Reason = "lost"        // the runner died, although the machine did not go down
	ReasonInterrupted      Reason = "interrupted" // the machine went down
	ReasonDeferred         Reason = "deferred"    // the exit code is one of the job's defer_codes
	ReasonStopped          Reason = "stopped"     // the service had to stop the attempt
	ReasonResourceShortage Reason = "shortage"    // the machine had no free process, memory or file descriptor
	ReasonExpired          Reason = "expired"     // the job was not started by expires_at
	ReasonUnkillable       Reason = "unkillable"  // a process of the attempt survived SIGKILL
	ReasonPoison           Reason = "poison"      // several runners died while this job was their only job
	ReasonCancelled        Reason = "cancelled"   // a user cancelled the job while it ran
	ReasonDependency       Reason = "dependency"  // a parent did not end as required, or was removed
	// ReasonReplaced means that another job replaced this one: a job with the same unique key, or the next
	// occurrence of its schedule.
	ReasonReplaced Reason = "replaced"
	ReasonDisowned Reason = "disowned" // the uid of the job's owner now belongs to another account
)
