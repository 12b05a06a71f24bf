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
		return queue.Job{ExecutionSettings: queue.ExecutionSettings{
			ResourceLimits: queue.ResourceLimits{MemoryBytes: 1, CPUs: 1, Tasks: 1, Nice: nice, MaxOpenFiles: nofile}}}
	}
	known := []queue.LimitEnforcement{
		{LimitField: "memory", Extent: queue.EnforcedPerProcess, Mechanism: "a"}, {LimitField: "cpus", Mechanism: "b"},
		{LimitField: "tasks", Extent: queue.Enforced}, {LimitField: "nice", Extent: queue.Enforced},
	}
	const older = "the runners, which supervise jobs, have not reported that they can enforce it"
	for name, c := range map[string]struct {
		jobs  []queue.Job
		known []queue.LimitEnforcement
		want  []queue.UnenforcedLimit
	}{
		"no limits": {[]queue.Job{{}}, nil, nil},
		"all": {[]queue.Job{{}, all(-1, 0), all(0, 5)}, known,
			[]queue.UnenforcedLimit{{known[0], 1}, {known[1], 1}, {queue.LimitEnforcement{LimitField: "nofile",
				Mechanism: older}, 2}}},
		"no new": {[]queue.Job{{ExecutionSettings: queue.ExecutionSettings{
			ResourceLimits: queue.ResourceLimits{NoNewPrivileges: true}}}}, nil,
			[]queue.UnenforcedLimit{{queue.LimitEnforcement{LimitField: "no_new_privileges", Mechanism: older}, 0}}},
		"older runner": {[]queue.Job{{ExecutionSettings: queue.ExecutionSettings{
			ResourceLimits: queue.ResourceLimits{Nice: 3}}}}, nil,
			[]queue.UnenforcedLimit{{queue.LimitEnforcement{LimitField: "nice", Mechanism: older}, 0}}},
	} {
		got := queue.UnenforcedLimits(c.jobs, c.known)
		if !reflect.DeepEqual(got, c.want) || queue.AnyJobHasLimit(c.jobs) != (name != "no limits") {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
