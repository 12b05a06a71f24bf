package worker

import (
	"cmp"
	"slices"
)

// This file defines the phases of a lease. A phase says what the pool knows about the job of the lease: which runner
// may have it, whether it may have started, and what must still be stored. An event moves a lease to another phase. The
// possible moves are as follows. The phase "begun" is the constant phaseAccepted, and "found" is phaseFoundStarted.
//
//	reading dependencies → withdrawn, settling, settled
//	awaiting runner      → withdrawn, sent, settling, returning
//	withdrawn            → settling, returning
//	sent                 → dropping, recalling, begun, found, running, settling, returning
//	dropping             → sent, begun, found, running, settling, returning
//	recalling            → sent, begun, found, running, settling, returning
//	begun                → found, running, settling, returning
//	found                → running, settling, returning
//	running              → settling, returning
//	settling             → settled
//	returning            → returned
//
// A typical lease goes through the phases sent, running, settling and settled. For a short job, the runner sends only
// the result, so the lease goes from sent to settling.
//
// If the table phaseTransitions does not list an event for a phase, the event changes nothing: the pool logs it and
// ignores it. If the pool applied such an event, a job could be settled twice, or be returned to the queue while it
// runs.

// leasePhase is the phase of a lease. The methods of leasePhase depend on the order of the constants.
type leasePhase uint8

const (
	// phaseUnchanged is only used in the table phaseTransitions. It means that the event fits the phase but does not
	// change it.
	phaseUnchanged leasePhase = iota
	// The service is reading the results of the job's dependencies. No runner has the job.
	phaseReadingDependencies
	// A separate runner is being started for the job. No runner has the job.
	phaseAwaitingRunner
	// The job will return to the queue, and no runner has received it. Run returns the job to the queue in its next step,
	// and claims no other job before that.
	phaseWithdrawn
	// The job was sent to a runner, which may start it at any time. A lease of an earlier service is also in
	// this phase until its runner is found.
	phaseSent
	// A DropStart frame, which takes the job back from the runner, was sent because a caller changes or ends the job. The
	// runner has not answered.
	phaseDropping
	// A DropStart frame was sent because of a recall, which takes back several waiting jobs. The runner has not answered,
	// and the pool claims no jobs before the answer.
	phaseRecalling
	// The runner has recorded the attempt and may have started it. It is too late to take the job back.
	phaseAccepted
	// The attempt has started: the files of its runner, which does not answer, name the process or contain the
	// result.
	phaseFoundStarted
	// The attempt has started: the runner or the store has reported the start.
	phaseRunning
	// The end of the lease is in storeSession.pendingReport.
	phaseSettling
	// The job's return to the queue is in storeSession.pendingReport. This attempt does not count.
	phaseReturning
	// The end is stored, or readDependencyResults has replaced the lease by a new one. The pool's leases do not contain
	// this lease any more.
	phaseSettled
	// The return is stored. The pool's leases do not contain this lease any more.
	phaseReturned
	phaseCount
)

// wasNeverSent reports whether no runner has ever received the job.
func (p leasePhase) wasNeverSent() bool { return p <= phaseWithdrawn }

// mayStart reports whether the job may still start: it is not known to have started or ended.
func (p leasePhase) mayStart() bool { return p <= phaseAccepted }

// mayHaveStarted reports whether the runner has recorded the attempt and the end of the lease is not
// decided.
func (p leasePhase) mayHaveStarted() bool { return p >= phaseAccepted && p <= phaseRunning }

// isEndDecided reports whether the pool has decided how the lease ends, or that the job returns to the queue.
func (p leasePhase) isEndDecided() bool { return p >= phaseSettling }

func (p leasePhase) String() string { return phaseNames[p] }

// leaseEvent is something that may change the phase of a lease. Its value is the name of the event in messages.
type leaseEvent string

const (
	eventDependenciesRead leaseEvent = "dependencies read" // the dependencies were read; a new lease replaces this one
	eventWithdrawn        leaseEvent = "withdrawn"         // a recall or a caller takes back a job that no runner has
	eventSent             leaseEvent = "sent"              // the job was sent to its new separate runner
	eventDropSent         leaseEvent = "drop sent"         // a DropStart frame was sent for a caller
	eventRecallSent       leaseEvent = "recall sent"       // a DropStart frame was sent for a recall
	eventDisconnected     leaseEvent = "disconnected"      // the connection to the runner has ended
	eventAccepted         leaseEvent = "begun"             // the runner has recorded the attempt
	eventFoundStarted     leaseEvent = "found"             // the runner's files show that the attempt has started
	eventStarted          leaseEvent = "started"           // the runner or the store has reported the start
	eventEndDecided       leaseEvent = "ended"             // the pool has decided how the lease ends
	eventReturnDecided    leaseEvent = "returned"          // the pool has decided that the job returns to the queue
	eventStored           leaseEvent = "recorded"          // the store has recorded the end or the return
)

// phaseTransition says to which phase an event moves a lease that is in one of fromPhases.
type phaseTransition struct {
	event      leaseEvent
	fromPhases []leasePhase
	toPhase    leasePhase
}

// phaseTransitions lists the events that fit each phase. An event that is not listed for a phase is ignored.
var phaseTransitions = []phaseTransition{
	{eventDependenciesRead, []leasePhase{phaseReadingDependencies}, phaseSettled},
	{eventWithdrawn, []leasePhase{phaseReadingDependencies, phaseAwaitingRunner}, phaseWithdrawn},
	{eventWithdrawn, []leasePhase{phaseWithdrawn}, phaseUnchanged},
	{eventSent, []leasePhase{phaseAwaitingRunner}, phaseSent},

	{eventDropSent, []leasePhase{phaseSent}, phaseDropping},
	{eventRecallSent, []leasePhase{phaseSent}, phaseRecalling},
	{eventDisconnected, []leasePhase{phaseDropping, phaseRecalling}, phaseSent},
	{eventDisconnected, []leasePhase{
		phaseSent, phaseAccepted, phaseFoundStarted, phaseRunning, phaseSettling, phaseReturning,
	}, phaseUnchanged},

	{eventAccepted, []leasePhase{phaseSent, phaseDropping, phaseRecalling}, phaseAccepted},
	{eventAccepted, []leasePhase{phaseAccepted, phaseFoundStarted, phaseRunning}, phaseUnchanged},
	{eventFoundStarted, []leasePhase{phaseSent, phaseDropping, phaseRecalling, phaseAccepted}, phaseFoundStarted},
	{eventStarted, []leasePhase{phaseSent, phaseDropping, phaseRecalling, phaseAccepted, phaseFoundStarted}, phaseRunning},
	{eventStarted, []leasePhase{phaseRunning, phaseSettling, phaseReturning}, phaseUnchanged},

	{eventEndDecided, []leasePhase{
		phaseReadingDependencies, phaseAwaitingRunner, phaseWithdrawn,
		phaseSent, phaseDropping, phaseRecalling, phaseAccepted, phaseFoundStarted, phaseRunning,
	}, phaseSettling},
	{eventReturnDecided, []leasePhase{
		phaseAwaitingRunner, phaseWithdrawn,
		phaseSent, phaseDropping, phaseRecalling, phaseAccepted, phaseFoundStarted, phaseRunning,
	}, phaseReturning},
	{eventStored, []leasePhase{phaseSettling}, phaseSettled},
	{eventStored, []leasePhase{phaseReturning}, phaseReturned},
}

// phaseAfter returns the phase of a lease after an event, if it was in phase p before. ok is false if the event
// does not fit p.
func (p leasePhase) phaseAfter(event leaseEvent) (next leasePhase, ok bool) {
	for _, t := range phaseTransitions {
		if t.event == event && slices.Contains(t.fromPhases, p) {
			return cmp.Or(t.toPhase, p), true // phaseUnchanged is 0
		}
	}
	return phaseUnchanged, false
}

// phaseNames contains the name of each phase, for messages.
var phaseNames = [phaseCount]string{
	phaseReadingDependencies: "reading dependencies", phaseAwaitingRunner: "awaiting runner", phaseWithdrawn: "withdrawn",
	phaseSent: "sent", phaseDropping: "dropping", phaseRecalling: "recalling",
	phaseAccepted: "begun", phaseFoundStarted: "found", phaseRunning: "running",
	phaseSettling: "settling", phaseReturning: "returning", phaseSettled: "settled", phaseReturned: "returned",
}
