package reasons

import (
	"cmp"
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// LinkNames returns the names of a job's dependencies in the syntax of enqueue.
func LinkNames(list []store.Link) []string {
	names := make([]string, 0, len(list))
	for _, l := range list {
		names = append(names, dependencyName(l.Seq, l.ID, l.Condition))
	}
	return names
}

// dependencyName returns the name of a dependency in the syntax of enqueue. A removed job has no id, so its
// number is used.
func dependencyName(seq int64, id string, how queue.DependencyCondition) string {
	name := cmp.Or(id, fmt.Sprintf("#%d", seq))
	if how != queue.ParentCompleted {
		name += ":" + how.String()
	}
	return name
}

// because returns the reason why a job is in its state, in parentheses, or "" if there is none.
func because(j *queue.Job) string {
	if j.Reason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", j.Reason)
}
