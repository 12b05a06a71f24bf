package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// phaseTransitionTable defines the phase that follows each phase after each event; "." means that the event does not
// fit the phase.
const phaseTransitionTable = `
event             reading-dependencies awaiting-runner withdrawn sent      dropping  recalling
dependencies-read settled              .               .         .         .         .
withdrawn         withdrawn            withdrawn       withdrawn .         .         .
sent              .                    sent            .         .         .         .
drop-sent         .                    .               .         dropping  .         .
recall-sent       .                    .               .         recalling .         .
disconnected      .                    .               .         sent      sent      sent
begun             .                    .               .         begun     begun     begun
found             .                    .               .         found     found     found
started           .                    .               .         running   running   running
ended             settling             settling        settling  settling  settling  settling
returned          .                    returning       returning returning returning returning
recorded          .                    .               .         .         .         .

event             begun     found     running   settling returning settled returned
dependencies-read .         .         .         .        .         .       .
withdrawn         .         .         .         .        .         .       .
sent              .         .         .         .        .         .       .
drop-sent         .         .         .         .        .         .       .
recall-sent       .         .         .         .        .         .       .
disconnected      begun     found     running   settling returning .       .
begun             begun     found     running   .        .         .       .
found             found     .         .         .        .         .       .
started           running   running   running   settling returning .       .
ended             settling  settling  settling  .        .         .       .
returned          returning returning returning .        .         .       .
recorded          .         .         .         settled  returned  .       .
`

// allPhases returns the phases that a lease can have.
func allPhases() (list []leasePhase) {
	for p := phaseUnchanged + 1; p < phaseCount; p++ {
		list = append(list, p)
	}
	return list
}

// allEvents returns all events that fit some phase.
func allEvents() (list []leaseEvent) {
	for _, transition := range phaseTransitions {
		if !slices.Contains(list, transition.event) {
			list = append(list, transition.event)
		}
	}
	return list
}

// hyphenatedName returns the name of a phase or an event in the form that phaseTransitionTable uses.
func hyphenatedName(name any) string { return strings.ReplaceAll(fmt.Sprint(name), " ", "-") }

// readPhaseTable returns the cells of phaseTransitionTable by phase and event. It checks that no phase and no event
// is missing.
func readPhaseTable(t *testing.T) map[string]map[string]string {
	t.Helper()
	table := map[string]map[string]string{}
	for block := range strings.SplitSeq(strings.TrimSpace(phaseTransitionTable), "\n\n") {
		rows := strings.Split(block, "\n")
		for i, p := range strings.Fields(rows[0])[1:] {
			table[p] = map[string]string{}
			for _, row := range rows[1:] {
				cells := strings.Fields(row)
				table[p][cells[0]] = cells[1+i]
			}
		}
	}
	for _, p := range allPhases() {
		for _, e := range allEvents() {
			if table[hyphenatedName(p)][hyphenatedName(e)] == "" {
				t.Fatalf("phaseTable has no cell for the phase %v and the event %q", p, e)
			}
		}
	}
	if len(table) != len(allPhases()) || len(table[hyphenatedName(phaseSent)]) != len(allEvents()) {
		t.Fatalf("phaseTable has %d phases and %d events, want %d and %d",
			len(table), len(table[hyphenatedName(phaseSent)]), len(allPhases()), len(allEvents()))
	}
	return table
}

// Every event moves a lease of every phase as phaseTransitionTable says. An event that does not fit changes
// nothing and is logged.
func TestEventsChangePhasesAsInTable(t *testing.T) {
	table := readPhaseTable(t)
	for _, p := range allPhases() {
		for _, e := range allEvents() {
			var log bytes.Buffer
			h := newLease(&queue.Job{ID: "a"}, 1, p, slog.New(slog.NewTextHandler(&log, nil)))
			want := table[hyphenatedName(p)][hyphenatedName(e)]
			fits := want != "."
			if !fits {
				want = hyphenatedName(p)
			}
			if ok := h.advancePhaseLocked(e); ok != fits || hyphenatedName(h.phase) != want {
				t.Errorf("phase %v is followed by %v after %q (fits: %v); want %s (fits: %v)", p, h.phase, e, ok, want, fits)
			}
			if logged := strings.Contains(log.String(), "job=a"); logged == fits {
				t.Errorf("phase %v, event %q: logged %v, want %v", p, e, logged, !fits)
			}
		}
	}
}

// The moves in the comment at the top of phase.go are those in the table phaseTransitions.
func TestPhaseCommentMatchesTransitions(t *testing.T) {
	source, err := os.ReadFile("phase.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(source)) {
		if strings.Contains(line, " → ") {
			got = append(got, strings.TrimSpace(strings.TrimPrefix(line, "//")))
		}
	}
	var want []string
	for _, p := range allPhases() {
		if next := nextPhaseNames(p); len(next) > 0 {
			want = append(want, fmt.Sprintf("%-20s → %s", p, strings.Join(next, ", ")))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the comment shows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// nextPhaseNames returns the names of the phases that can follow a phase, in the order of the phases.
func nextPhaseNames(p leasePhase) (names []string) {
	for _, q := range allPhases() {
		for _, e := range allEvents() {
			if next, ok := p.phaseAfter(e); ok && next == q && q != p {
				names = append(names, q.String())
				break
			}
		}
	}
	return names
}

// No order of events loses a job or runs it twice: every lease can end, and no lease ends twice. Once the attempt may
// have started, the pool does not take the job back without an answer of the runner.
func TestEveryLeaseEndsOnce(t *testing.T) {
	for _, p := range allPhases() {
		_, canEnd := p.phaseAfter(eventEndDecided)
		_, canReturn := p.phaseAfter(eventReturnDecided)
		if canEnd == p.isEndDecided() {
			t.Errorf("an end in the phase %v is possible: %v, want %v", p, canEnd, !p.isEndDecided())
		}
		if canReturn && p.isEndDecided() {
			t.Errorf("a lease in phase %v can be returned", p)
		}
		if p.wasNeverSent() && p.mayHaveStarted() || p.isEndDecided() && (p.mayStart() || p.mayHaveStarted()) {
			t.Errorf("the methods of phase %v contradict each other", p)
		}
		for _, e := range allEvents() {
			next, ok := p.phaseAfter(e)
			switch {
			case !ok:
			case p.mayHaveStarted() && !next.mayHaveStarted() && !next.isEndDecided():
				t.Errorf("phase %v: after %q, the pool no longer knows that the attempt may have started", p, e)
			case p.isEndDecided() && !next.isEndDecided():
				t.Errorf("a lease in phase %v is open again after %q", p, e)
			case !p.wasNeverSent() && next.wasNeverSent():
				t.Errorf("phase %v: after %q, a job that a runner may have counts as never sent", p, e)
			}
		}
	}
}

// After the first report of its start, an attempt counts as started, even while the end of its lease is
// being stored.
func TestStartedLeaseStaysStarted(t *testing.T) {
	h := newLease(&queue.Job{}, 1, phaseSent, slog.New(slog.DiscardHandler))
	if h.hasStarted() {
		t.Error("a new lease counts as started")
	}
	for _, e := range []leaseEvent{eventStarted, eventStarted, eventEndDecided, eventStored} {
		if e == eventStarted {
			h.markStartedLocked()
		} else {
			h.advancePhaseLocked(e)
		}
		if !h.hasStarted() {
			t.Errorf("not started after %q", e)
		}
	}
	if h.phase != phaseSettled {
		t.Errorf("the phase is %v, want %v", h.phase, phaseSettled)
	}
}
