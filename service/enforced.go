package service

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// limitsWithin is how long a request waits to hear which limits are enforced, where no runner
// has said so yet.
// See docs/decisions/0044.
const limitsWithin = 5 * time.Second

// unenforced names the limits of jobs that are not enforced here as they are meant: all, as long
// as no runner has said anything. If all are required, such a job is refused.
func (s *Service) unenforced(ctx context.Context, jobs []queue.Job, require bool) (names []string, err error) {
	if !queue.AnyLimit(jobs) {
		return nil, nil
	}
	wait := limitsWithin
	if !require { // where there is no runner, nobody waits for one but while the service starts
		wait -= s.store.Now().Time().Sub(s.started.Time())
	}
	within, cancel := context.WithTimeout(ctx, max(0, wait))
	defer cancel()
	known, ok := s.pool.Limits(within)
	if !ok && require {
		return nil, queue.Errorf(queue.CodeUnavailable, "no runner has reported yet which limits it can enforce; try again, or see: queuectl status")
	}
	lacks := queue.Shortfalls(jobs, known)
	for _, short := range lacks {
		names = append(names, short.Limit)
	}
	if require && len(lacks) > 0 {
		return nil, refusal(lacks[0], names[1:], len(jobs))
	}
	return names, nil
}

// refusal is why one of so many jobs does not have a limit that is required, and which others are the same.
func refusal(short queue.Shortfall, others []string, of int) error {
	what := "is not enforced on this machine"
	if short.Extent == queue.ForEach {
		what = "limits each process of a job on this machine, but not all of them together"
	}
	what += " (" + short.By + ")"
	if len(others) > 0 {
		what += "; also not fully enforced: " + strings.Join(others, ", ")
	}
	e := queue.Errorf(queue.CodeUnsupported, "%s; leave out this limit, or do not require it; see: queuectl doctor", what)
	e.Field = short.Limit
	if of > 1 {
		return e.At(short.Index + 1)
	}
	return e
}

// examineEnforcement lists what enforces each limit. It warns of the limits that --require-limits refuses here.
func (s *Service) examineEnforcement(ctx context.Context) (list []store.Finding) {
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	known, ok := s.pool.Limits(within)
	if !ok {
		return []store.Finding{{Check: "enforcement", Level: store.Warning, Message: "no runner has reported which limits it can enforce", Next: "see: queuectl status"}}
	}
	grouped := slices.ContainsFunc(known, func(e queue.Enforcement) bool {
		return e.Extent == queue.Enforced && slices.Contains([]string{"memory", "cpus", "tasks"}, e.Limit)
	})
	list = append(list, store.Finding{Check: "enforcement", Level: store.Fine, Message: s.enforcement(grouped)})
	for _, e := range queue.Enforcements(known) {
		list = append(list, enforcementOf(e))
	}
	return list
}

// enforcementOf is the finding about one limit.
func enforcementOf(e queue.Enforcement) store.Finding {
	f := store.Finding{Check: "enforcement", Level: store.Warning, Next: "to reject jobs that set this limit, enqueue them with --require-limits"}
	switch e.Extent {
	case queue.Enforced:
		return store.Finding{Check: f.Check, Level: store.Fine, Message: e.Limit + " is enforced by " + e.By}
	case queue.ForEach:
		f.Message = e.Limit + " is enforced for each process, not per job: " + e.By
	default:
		f.Message = e.Limit + " limits are not enforced (" + e.By + ")"
	}
	return f
}
