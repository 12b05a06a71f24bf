package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// fakeQueue is a queue whose QueueList returns pages of two queues.
type fakeQueue struct {
	control.API
	queues []control.QueueView
	err    error // error of every page after the first
}

func (f *fakeQueue) Status(context.Context, control.NoParams) (control.Status, error) {
	return control.Status{Health: "ok", Jobs: map[string]int64{"dead": 2}}, nil
}

func (f *fakeQueue) ReadStats(context.Context, control.StatsParams) (control.Stats, error) {
	named := control.QueueStats{Queue: "a", AttemptStatistics: control.AttemptStatistics{Started: 5, Completed: 3,
		Dead: 2}}
	return control.Stats{Queues: []control.QueueStats{named}}, nil
}

func (f *fakeQueue) ListQueues(_ context.Context, p control.QueueListParams) (page control.QueueList, err error) {
	first := 0
	if p.AfterName != "" {
		if f.err != nil {
			return page, f.err
		}
		for f.queues[first].Queue <= p.AfterName {
			first++
		}
	}
	last := min(first+2, len(f.queues))
	page.Queues = f.queues[first:last]
	if last < len(f.queues) {
		page.Next = f.queues[last-1].Queue
	}
	return page, nil
}

// numberedQueues returns n queues, ordered by name, with one running job each.
func numberedQueues(n int) (queues []control.QueueView) {
	for i := range n {
		queues = append(queues, control.QueueView{Queue: fmt.Sprintf("q%03d", i), Running: 1})
	}
	return queues
}

// The metrics contain the state of the queue, its statistics, and the queues of all pages.
func TestMetricsContainQueuesOfAllPages(t *testing.T) {
	var text strings.Builder
	if err := WriteMetricsText(t.Context(), &fakeQueue{queues: numberedQueues(5)}, &text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`queuectl_healthy 1`, `queuectl_jobs{state="dead"} 2`, `queuectl_attempts_started_total{queue="a"} 5`,
		`queuectl_attempts_ended_total{outcome="dead",queue="a"} 2`, `queuectl_queue_running{queue="q004"} 1`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("the metrics lack %q:\n%s", want, text.String())
		}
	}
}

// At most MaxLabelledQueues queues get a label with their name. The values of the other queues are added up, except
// those of queues that are paused or have a limit.
func TestMetricsCombineQueuesBeyondTheLimit(t *testing.T) {
	queues := numberedQueues(MaxLabelledQueues + 4)
	queues[MaxLabelledQueues+1].Paused, queues[MaxLabelledQueues+2].Concurrency = true, 3
	var text strings.Builder
	if err := WriteMetricsText(t.Context(), &fakeQueue{queues: queues}, &text); err != nil {
		t.Fatal(err)
	}
	// The statistics contain the queue "a", which also gets a label. So q099 is the first queue without its own label.
	for name, running := range map[string]int{"q098": 1, "q099": 0, "q101": 1, "q102": 1, "q103": 0, OtherQueuesLabel: 3} {
		line := fmt.Sprintf("queuectl_queue_running{queue=%q} %d\n", name, running)
		if strings.Contains(text.String(), line) != (running > 0) {
			t.Errorf("queue %s: want the metric of %d running jobs, or no metric for 0", name, running)
		}
	}
}

// If one page of queues cannot be read, WriteMetricsText writes nothing, because the metrics would be incomplete.
func TestMetricsFailIfQueuePageFails(t *testing.T) {
	var text strings.Builder
	away := errors.New("away")
	err := WriteMetricsText(t.Context(), &fakeQueue{queues: numberedQueues(5), err: away}, &text)
	if !errors.Is(err, away) || text.Len() > 0 {
		t.Errorf("wrote %q, %v; want nothing and the error", text.String(), err)
	}
}
