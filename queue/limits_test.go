package queue_test

import (
	"reflect"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// UnenforcedLimits returns every limit that is not fully enforced, with the index of the first job that has the
// limit.
func TestUnenforcedLimitsNameFirstJob(t *testing.T) {
	all := func(nice, nofile int64) queue.Job {
		return queue.Job{Execution: queue.Execution{
			Limits: queue.Limits{Memory: 1, CPUs: 1, Tasks: 1, Nice: nice, NoFile: nofile}}}
	}
	known := []queue.Enforcement{
		{LimitField: "memory", Extent: queue.EnforcedPerProcess, Mechanism: "a"}, {LimitField: "cpus", Mechanism: "b"},
		{LimitField: "tasks", Extent: queue.Enforced}, {LimitField: "nice", Extent: queue.Enforced},
	}
	const older = "the runners, which supervise jobs, have not reported that they can enforce it"
	for name, c := range map[string]struct {
		jobs  []queue.Job
		known []queue.Enforcement
		want  []queue.UnenforcedLimit
	}{
		"no limits": {[]queue.Job{{}}, nil, nil},
		"all": {[]queue.Job{{}, all(-1, 0), all(0, 5)}, known,
			[]queue.UnenforcedLimit{{known[0], 1}, {known[1], 1}, {queue.Enforcement{LimitField: "nofile", Mechanism: older},
				2}}},
		"no new": {[]queue.Job{{Execution: queue.Execution{Limits: queue.Limits{NoNewPrivileges: true}}}}, nil,
			[]queue.UnenforcedLimit{{queue.Enforcement{LimitField: "no_new_privileges", Mechanism: older}, 0}}},
		"older runner": {[]queue.Job{{Execution: queue.Execution{Limits: queue.Limits{Nice: 3}}}}, nil,
			[]queue.UnenforcedLimit{{queue.Enforcement{LimitField: "nice", Mechanism: older}, 0}}},
	} {
		got := queue.UnenforcedLimits(c.jobs, c.known)
		if !reflect.DeepEqual(got, c.want) || queue.AnyJobHasLimit(c.jobs) != (name != "no limits") {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
