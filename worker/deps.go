package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// parentJSON describes one parent of a job (a job on which it depends), in the JSON that the job receives.
type parentJSON struct {
	ID       string          `json:"id"`
	State    string          `json:"state"`
	ExitCode *int64          `json:"exit_code"`
	Result   json.RawMessage `json:"result"` // nil if the parent left no result or belongs to another user
}

// Limits for reading the results of dependencies.
const (
	dependencyReadTimeout = time.Second // time limit of one read
	// maximum number of concurrent reads, since the results take memory until the jobs start
	maxConcurrentDependencyReads = 2
)

// readDependencyResults reads the results of a claimed job's dependencies and then starts the job. It reads in the
// background, because a job may have ten thousand dependencies, and other jobs must not wait for this read. During the
// read, the job already counts as one that occupies a worker.
func (l *poolLoop) readDependencyResults(j queue.Job) {
	l.mu.Lock()
	h := l.leases.addLeaseLocked(&j, phaseReadingDependencies)
	l.mu.Unlock()
	l.Go(func() {
		l.dependencyReadSlots <- struct{}{}
		defer func() { <-l.dependencyReadSlots }()
		ctx, cancel := context.WithTimeout(l.ctx, dependencyReadTimeout)
		defer cancel()
		list, err := l.store.ParentJobs(ctx, j.Seq)
		if err == nil {
			j.DependencyResults, err = dependenciesJSON(&j, list)
		}
		l.runInLoop(func() error {
			l.mu.Lock()
			if h.phase != phaseReadingDependencies { // the job is being returned to the queue
				l.mu.Unlock()
				return nil
			}
			if err == nil {
				l.leases.removeLeaseLocked(j.Lease(), eventDependenciesRead) // dispatchClaimedJobs will add a new lease for the job
				l.mu.Unlock()
				l.dispatchClaimedJobs([]queue.Job{j}, false)
				return nil
			}
			h.advancePhaseLocked(eventEndDecided)
			l.postponeJobs([]queue.Job{j}, err)
			l.mu.Unlock()
			l.cfg.Log.Warn("could not read the results of a job's dependencies; trying again", "job", j.ID, "error", err)
			return nil
		})
	})
}

// dependenciesJSON returns the parents of a job as JSON, with their ids, states and exit codes. It adds the
// results of parents that belong to the same user, except a result that would make the JSON longer than
// queue.MaxDependencyResultBytes bytes.
func dependenciesJSON(j *queue.Job, parents []store.ParentJob) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // escaped characters would take six times as many bytes
	b.WriteByte('[')
	limit := queue.MaxDependencyResultBytes
	for i := range parents {
		p := &parents[i]
		entry := parentJSON{ID: p.ID, State: p.State.String()}
		if p.ExitCode >= 0 {
			entry.ExitCode = &p.ExitCode
		}
		if p.UID == j.UID && p.UID >= 0 && b.Len()+len(p.ResultJSON) <= limit {
			entry.Result = p.ResultJSON
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(&entry); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1) // remove the newline that Encode adds
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}
