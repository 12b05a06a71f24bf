package sql

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// estimates holds how long commands usually run, with the most recently completed first. It is updated after
// each commit and written to the database at most once a minute; see keepUsual. The zero value holds no
// estimates.
type estimates struct {
	mu      sync.Mutex
	order   list.List                // of *estimate, the most recently completed first; guarded by mu
	of      map[uint64]*list.Element // by fingerprint; guarded by mu
	changed bool                     // since the estimates were written; guarded by mu
	written queue.Millis             // minute of the last write; used by the writer only
}

// estimate is how long the commands with one fingerprint run. The fingerprint is a hash of the command.
type estimate struct {
	fingerprint uint64
	store.Estimate
}

// estimateSize is the size in bytes of an estimate in usual.list: fingerprint, logarithm and number of runs.
const estimateSize = 8 + 8 + 1

// note adds completed attempts to the estimates.
func (e *estimates) note(measured []rules.Measured) {
	for i := range measured {
		if m := &measured[i]; m.Fingerprint != 0 {
			e.mu.Lock()
			at := e.at(m.Fingerprint)
			at.Note(m.Took)
			e.changed = true
			e.mu.Unlock()
		}
	}
}

// at returns the estimate of a fingerprint, creates it if necessary, and moves it to the front. The caller
// holds mu.
func (e *estimates) at(fingerprint uint64) *estimate {
	if known := e.of[fingerprint]; known != nil {
		e.order.MoveToFront(known)
		return known.Value.(*estimate)
	}
	if e.of == nil {
		e.of = map[uint64]*list.Element{}
	}
	if len(e.of) >= store.MaxEstimates {
		last := e.order.Back()
		delete(e.of, last.Value.(*estimate).fingerprint)
		e.order.Remove(last)
	}
	one := &estimate{fingerprint: fingerprint}
	e.of[fingerprint] = e.order.PushFront(one)
	return one
}

// Usual returns how long a job with the fingerprint usually runs, or 0 if that is unknown.
func (s *engine) Usual(fingerprint uint64) time.Duration {
	s.usual.mu.Lock()
	defer s.usual.mu.Unlock()
	if known := s.usual.of[fingerprint]; known != nil {
		return known.Value.(*estimate).Usual()
	}
	return 0
}

// take returns the encoded estimates for writing, or nil if nothing has changed.
func (e *estimates) take() (b []byte) {
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

const putUsual = `INSERT INTO usual (one, list) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET list = excluded.list`

// keepUsual writes the estimates at most once a minute.
func (t *tx) keepUsual() error {
	e := &t.s.usual
	if minute := store.Minute.Floor(t.now); e.written != minute {
		e.written = minute
		if list := e.take(); list != nil {
			t.undo = append(t.undo, func() { e.unwritten() })
			err := t.exec(putUsual, list)
			return err
		}
	}
	return nil
}

// unwritten marks the estimates as not written, because the transaction that wrote them was undone.
func (e *estimates) unwritten() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed, e.written = true, 0
}

// writeUsual writes the estimates when the store is closed.
func (s *engine) writeUsual() (err error) {
	if list := s.usual.take(); list != nil {
		err = s.db.exec(putUsual, list)
	}
	return err
}

// loadUsual reads the estimates. It skips damaged ones.
func (s *engine) loadUsual() error {
	var b []byte
	err := s.db.query(func(r row) (bool, error) {
		b = bytes.Clone(r.view(0))
		return false, nil
	}, `SELECT list FROM usual`)
	s.usual.mu.Lock()
	defer s.usual.mu.Unlock()
	for ; len(b) >= estimateSize; b = b[estimateSize:] {
		log, runs := math.Float64frombits(binary.LittleEndian.Uint64(b[8:])), b[16]
		if fingerprint := binary.LittleEndian.Uint64(b); fingerprint != 0 && log >= 0 && log < math.Log(math.MaxInt64) && runs > 0 {
			s.usual.at(fingerprint).Estimate = store.Estimate{Log: log, Runs: runs}
		}
	}
	return err
}
