package enqueue

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// This file orders the jobs of an upload by their dependencies. The service accepts a job only if each of its parents
// is in the same request, in an earlier request or in the queue.
//
// For example, line 1 of a file with 100,000 lines depends on line 90,000. When the first request is full, line 90,000
// was not read yet. So takeReadyJobs holds the job of line 1 back, that is, does not send it yet. After the last line,
// or when too many jobs are held back, sortRemainingJobs sorts these jobs so that parents come first. Then they are
// sent.

// pendingJob is a job of a file that has not been sent yet.
type pendingJob struct {
	jobJSON        json.RawMessage
	lineNumber     int
	jobIndexInFile int      // position among the jobs of the file, from 0
	argAndEnvCount int      // number of arguments and environment variables
	ID             string   // "" if the job has none, so that the service assigns a number
	parentIDs      []string // ids of the jobs that this job depends on
	expiresAt      *queue.UnixMillis
}

// dependencySorter reorders the jobs of a file that is sent in several requests. It holds a job back while one of the
// job's parents is neither in the current request nor in an earlier one.
type dependencySorter struct {
	idHashSeed    maphash.Seed    // seed of the hashes in sentIDHashes
	sentIDHashes  map[uint64]bool // hashes of the ids that were sent; ids would need more memory
	delayedJobs   []pendingJob    // jobs that are held back
	jobsReordered bool            // a job was held back, so the jobs are sent in another order than in the file
}

// maxDelayedJobs is the number of held-back jobs at which all of them are sent. Their parents are then probably in the
// queue, and not in the rest of the file.
const maxDelayedJobs = queue.MaxDependencies

// dependencyIDs returns the ids of the jobs that a spec depends on.
func dependencyIDs(s *queue.Spec) []string {
	names := make([]string, len(s.DependsOn))
	for i, d := range s.DependsOn {
		names[i], _, _ = strings.Cut(d, ":")
	}
	return names
}

// takeReadyJobs returns those jobs of a request that can be sent, because all their parents are in this request or were
// sent before. It adds the other jobs to delayedJobs.
func (s *dependencySorter) takeReadyJobs(requestJobs []pendingJob) []pendingJob {
	inPart := map[string]bool{}
	for i := range requestJobs {
		inPart[requestJobs[i].ID] = true
	}
	unknown := func(id string) bool { return !inPart[id] && !s.sentIDHashes[maphash.String(s.idHashSeed, id)] }
	for changed := true; changed; {
		changed = false
		ready := requestJobs[:0:0]
		for _, j := range requestJobs {
			if !slices.ContainsFunc(j.parentIDs, unknown) {
				ready = append(ready, j)
				continue
			}
			// Repeat the outer loop, because other jobs in this request may depend on this job and must now be held back too.
			s.delayedJobs, s.jobsReordered, changed = append(s.delayedJobs, j), true, true
			delete(inPart, j.ID)
		}
		requestJobs = ready
	}
	return s.recordSentIDs(requestJobs)
}

// recordSentIDs records the ids of jobs that are about to be sent, and returns the jobs.
func (s *dependencySorter) recordSentIDs(requestJobs []pendingJob) []pendingJob {
	for i := range requestJobs {
		if requestJobs[i].ID != "" {
			s.sentIDHashes[maphash.String(s.idHashSeed, requestJobs[i].ID)] = true
		}
	}
	return requestJobs
}

// sortRemainingJobs returns the remaining jobs, sorted so that each job follows its parents. It returns an error if
// the dependencies form a cycle.
func (s *dependencySorter) sortRemainingJobs(requestJobs []pendingJob) ([]pendingJob, error) {
	if len(s.delayedJobs) == 0 {
		return requestJobs, nil
	}
	pending := append(s.delayedJobs, requestJobs...)
	s.delayedJobs = nil
	byID := map[string]int{}
	for i := range pending {
		byID[pending[i].ID] = i
	}
	const visiting, done = 1, 2
	state := make([]int, len(pending))
	sorted := make([]pendingJob, 0, len(pending))
	var ancestorIDs []string // ids of the jobs whose parents are being visited, the current job last
	var visit func(i int) error
	visit = func(i int) error {
		if state[i] == done {
			return nil
		}
		if state[i] == visiting {
			cycle := append(ancestorIDs[slices.Index(ancestorIDs, pending[i].ID):], pending[i].ID)
			return fault.WithLineNumber(queue.InvalidFieldError("depends_on",
				"the dependencies form a cycle (%s); remove one of them",
				queue.ClipForMessage(strings.Join(cycle, ", "))), pending[i].lineNumber)
		}
		state[i], ancestorIDs = visiting, append(ancestorIDs, pending[i].ID)
		for _, id := range pending[i].parentIDs {
			if other, here := byID[id]; here {
				if err := visit(other); err != nil {
					return err
				}
			}
		}
		state[i], ancestorIDs = done, ancestorIDs[:len(ancestorIDs)-1]
		sorted = append(sorted, pending[i])
		return nil
	}
	for i := range pending {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}
