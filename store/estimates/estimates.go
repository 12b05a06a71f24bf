// Package estimates remembers the typical run times of commands, and encodes them for the database.
//
// Start with Estimates.
package estimates

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// Estimates holds the typical run times of commands. They are updated after each commit and written to the
// database at most once a minute; see Due. The zero value holds no estimates.
type Estimates struct {
	mu            sync.Mutex
	order         list.List                // list of *estimate, most recently completed first; guarded by mu
	byFingerprint map[uint64]*list.Element // by fingerprint; guarded by mu
	changed       bool                     // the estimates have changed since they were written; guarded by mu
	written       queue.Millis             // minute of the last write; used by the writer only
}

// estimate is the typical run time of the commands with one fingerprint. The fingerprint is a hash of the
// command.
type estimate struct {
	fingerprint uint64
	store.Estimate
}

// EstimateSize is the size in bytes of an estimate in the table usual: fingerprint, logarithm and number of
// runs.
const EstimateSize = 8 + 8 + 1

// Note adds completed attempts to the estimates.
func (e *Estimates) Note(measured []rules.Measurement) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range measured {
		if m := &measured[i]; m.Fingerprint != 0 {
			e.entry(m.Fingerprint).Note(m.Duration)
			e.changed = true
		}
	}
}

// entry returns the estimate of a fingerprint, creates it if necessary, and moves it to the front. The caller
// holds mu.
func (e *Estimates) entry(fingerprint uint64) *estimate {
	if known := e.byFingerprint[fingerprint]; known != nil {
		e.order.MoveToFront(known)
		return known.Value.(*estimate)
	}
	if e.byFingerprint == nil {
		e.byFingerprint = map[uint64]*list.Element{}
	}
	if len(e.byFingerprint) >= store.MaxEstimates {
		last := e.order.Back()
		delete(e.byFingerprint, last.Value.(*estimate).fingerprint)
		e.order.Remove(last)
	}
	one := &estimate{fingerprint: fingerprint}
	e.byFingerprint[fingerprint] = e.order.PushFront(one)
	return one
}

// Usual returns the typical run time of jobs with the fingerprint, or 0 if it is unknown.
func (e *Estimates) Usual(fingerprint uint64) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.byFingerprint[fingerprint]; known != nil {
		return known.Value.(*estimate).TypicalRuntime()
	}
	return 0
}

// Due reports whether the estimates have not been written in this minute yet. Only the writer calls it.
func (e *Estimates) Due(minute queue.Millis) bool {
	due := e.written != minute
	e.written = minute
	return due
}

// Encode returns the encoded estimates for writing, or nil if nothing has changed.
func (e *Estimates) Encode() (b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.changed {
		return nil
	}
	e.changed = false
	for at := e.order.Back(); at != nil; at = at.Prev() {
		one := at.Value.(*estimate)
		b = binary.LittleEndian.AppendUint64(b, one.fingerprint)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(one.Log))
		b = append(b, one.Runs)
	}
	return b
}

// PutEstimates stores encoded estimates.
const PutEstimates = `INSERT INTO usual (one, list) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET list = excluded.list`

// MarkUnwritten marks the estimates as not written, because the transaction that wrote them was undone.
func (e *Estimates) MarkUnwritten() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed, e.written = true, 0
}

// Load reads the estimates from the database. It skips damaged ones.
func (e *Estimates) Load(c database.Statements) error {
	var b []byte
	_, err := database.First(c, func(r database.Row) { b = bytes.Clone(r.View(0)) }, `SELECT list FROM usual`)
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; len(b) >= EstimateSize; b = b[EstimateSize:] {
		log, runs := math.Float64frombits(binary.LittleEndian.Uint64(b[8:])), b[16]
		if fingerprint := binary.LittleEndian.Uint64(b); fingerprint != 0 && log >= 0 && log < math.Log(math.MaxInt64) &&
			runs > 0 {
			e.entry(fingerprint).Estimate = store.Estimate{Log: log, Runs: runs}
		}
	}
	return err
}
