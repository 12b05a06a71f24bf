package records

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/store/database"
)

// QueueCount holds the stored counts of a queue.
type QueueCount struct {
	Waiting   int64 `json:"w"`
	UID       int   `json:"u"`
	KeptJobs  int64 `json:"e,omitempty"`
	KeptBytes int64 `json:"o,omitempty"` // bytes of the outputs of KeptJobs
}

// ParseQueueCounts parses meta.queues.
func ParseQueueCounts(list string) (map[string]QueueCount, error) {
	of := map[string]QueueCount{}
	for entry := range strings.FieldsSeq(list) {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return nil, database.Damage("the stored counts of jobs are damaged")
		}
		n, err := database.ParseNumbers(entry[at+1:])
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", entry[:at], err)
		}
		of[entry[:at]] = QueueCount{n[0], int(n[1]), n[2], n[3]}
	}
	return of, nil
}
