package present

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// NoQueuesText is the text for an empty list of queues.
const NoQueuesText = "no queues; a job creates one: queuectl enqueue -Q NAME -- program args"

// QueueHeadings returns the headings of the list of queues.
func QueueHeadings() []string {
	return []string{"QUEUE", "RUNNING", "WAITING", "OLDEST", "PER MIN", "CONCURRENCY", "WEIGHT", "MAX PENDING", "DEFAULTS",
		"PAUSED"}
}

// QueueRow returns the row of a queue in the list of queues.
func QueueRow(q *control.QueueView, now time.Time) []string {
	oldest := "-"
	if q.OldestReadySince != 0 {
		oldest = AgeText(q.OldestReadySince, now)
	}
	return []string{q.Queue, fmt.Sprint(q.Running), fmt.Sprint(q.Waiting), oldest,
		fmt.Sprint(q.ThroughputPerMinute), numberOrUnlimited(int64(q.Concurrency)), fmt.Sprint(q.Weight),
		numberOrUnlimited(q.MaxWaitingJobs), jobDefaultsText(q.JobDefaults), QueuePauseText(q)}
}

func numberOrUnlimited(n int64) string { return chooseText(n == 0, "unlimited", fmt.Sprint(n)) }

// jobDefaultsText formats a queue's defaults as FIELD=VALUE.
func jobDefaultsText(defaultsJSON json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(defaultsJSON, &fields) != nil || len(fields) == 0 {
		return "-"
	}
	texts := map[string]string{}
	for name, value := range fields {
		texts[name] = jsonValueText(value, ",")
	}
	return formatNameValues(texts, " ")
}

// QueuePauseText describes the pause of a queue: its end, the user who paused the queue, and the reason. It
// returns "-" if the queue is not paused.
func QueuePauseText(q *control.QueueView) string {
	if !q.Paused {
		return "-"
	}
	text := chooseText(q.RunningJobsFrozen, "frozen", "paused")
	if q.PausedUntil != 0 {
		text += " until " + clockTimeWithZone(queue.UnixMillis(q.PausedUntil).Time(), time.Now())
	}
	if q.PausedBy != nil {
		text += ", by " + *q.PausedBy
	}
	if q.PauseReason != nil {
		text += ": " + *q.PauseReason
	}
	return text
}
