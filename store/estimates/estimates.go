// Package estimates remembers the typical run times of commands, and encodes them for the database.
//
// Start with RuntimeEstimates.
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

// RuntimeEstimates holds the typical run times of commands. They are updated after each commit and written to the
// database at most once a minute; see IsWriteDue. The zero value holds no estimates.
type RuntimeEstimates struct {
	mu                   sync.Mutex
	estimatesByRecency   list.List                // list of *estimate, most recently completed first; guarded by mu
	elementByFingerprint map[uint64]*list.Element // the elements of estimatesByRecency by fingerprint; guarded by mu
	hasUnwrittenChanges  bool                     // the estimates have changed since they were written; guarded by mu
	lastWriteMinute      queue.UnixMillis         // minute of the last write; only the goroutine that may write uses it
}

// runtimeEstimate is the typical run time of the commands with one fingerprint. The fingerprint is a hash of the
// command.
type runtimeEstimate struct {
	fingerprint uint64
	store.RuntimeEstimate
}

// EncodedEstimateBytes is the size in bytes of an estimate in the table "usual": its fingerprint, the logarithm of its
// mean run time, and its number of runs.
const EncodedEstimateBytes = 8 + 8 + 1

// AddMeasurements adds the run times of completed attempts to the estimates.
func (e *RuntimeEstimates) AddMeasurements(measurements []rules.AttemptMeasurement) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range measurements {
		if m := &measurements[i]; m.CommandFingerprint != 0 {
			e.findOrAdd(m.CommandFingerprint).AddRuntime(m.WaitOrRunTime)
			e.hasUnwrittenChanges = true
		}
	}
}

// findOrAdd returns the estimate of a fingerprint, creates it if necessary, and moves it to the front. The caller
// holds mu.
func (e *RuntimeEstimates) findOrAdd(fingerprint uint64) *runtimeEstimate {
	if known := e.elementByFingerprint[fingerprint]; known != nil {
		e.estimatesByRecency.MoveToFront(known)
		return known.Value.(*runtimeEstimate)
	}
	if e.elementByFingerprint == nil {
		e.elementByFingerprint = map[uint64]*list.Element{}
	}
	if len(e.elementByFingerprint) >= store.MaxRuntimeEstimates {
		last := e.estimatesByRecency.Back()
		delete(e.elementByFingerprint, last.Value.(*runtimeEstimate).fingerprint)
		e.estimatesByRecency.Remove(last)
	}
	one := &runtimeEstimate{fingerprint: fingerprint}
	e.elementByFingerprint[fingerprint] = e.estimatesByRecency.PushFront(one)
	return one
}

// TypicalRuntime returns the typical run time of jobs with the fingerprint, or 0 if it is unknown.
func (e *RuntimeEstimates) TypicalRuntime(fingerprint uint64) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.elementByFingerprint[fingerprint]; known != nil {
		return known.Value.(*runtimeEstimate).TypicalRuntime()
	}
	return 0
}

// IsWriteDue reports whether the estimates have not been written in this minute yet. The caller must then write
// them, because IsWriteDue returns false for the rest of the minute. The caller holds the right to write to the
// store.
func (e *RuntimeEstimates) IsWriteDue(minute queue.UnixMillis) bool {
	due := e.lastWriteMinute != minute
	e.lastWriteMinute = minute
	return due
}

// Encode returns the encoded estimates for writing, or nil if nothing has changed since the last call.
func (e *RuntimeEstimates) Encode() (encodedEstimates []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.hasUnwrittenChanges {
		return nil
	}
	e.hasUnwrittenChanges = false
	for at := e.estimatesByRecency.Back(); at != nil; at = at.Prev() {
		one := at.Value.(*runtimeEstimate)
		encodedEstimates = binary.LittleEndian.AppendUint64(encodedEstimates, one.fingerprint)
		encodedEstimates = binary.LittleEndian.AppendUint64(encodedEstimates, math.Float64bits(one.LogMeanMillis))
		encodedEstimates = append(encodedEstimates, one.WeightedRuns)
	}
	return encodedEstimates
}

// ReplaceEstimatesSQL replaces the stored estimates.
const ReplaceEstimatesSQL = `INSERT INTO usual (one, list) VALUES (1, ?)
	ON CONFLICT (one) DO UPDATE SET list = excluded.list`

// MarkUnwritten marks the estimates as not written, because the transaction that wrote them was rolled back.
func (e *RuntimeEstimates) MarkUnwritten() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hasUnwrittenChanges, e.lastWriteMinute = true, 0
}

// LoadFromDatabase reads the estimates from the database. It skips damaged ones.
func (e *RuntimeEstimates) LoadFromDatabase(c database.Statements) error {
	var b []byte
	_, err := database.ReadFirstRow(c, func(r database.Row) { b = bytes.Clone(r.BytesView(0)) }, `SELECT list FROM usual`)
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; len(b) >= EncodedEstimateBytes; b = b[EncodedEstimateBytes:] {
		log, runs := math.Float64frombits(binary.LittleEndian.Uint64(b[8:])), b[16]
		if fingerprint := binary.LittleEndian.Uint64(b); fingerprint != 0 && log >= 0 && log < math.Log(math.MaxInt64) &&
			runs > 0 {
			e.findOrAdd(fingerprint).RuntimeEstimate = store.RuntimeEstimate{LogMeanMillis: log, WeightedRuns: runs}
		}
	}
	return err
}
