package records

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/store/database"
)

// QueueCount holds the stored counts of a queue.
type QueueCount struct {
	Waiting             int64
	UID                 int
	KeptJobs, KeptBytes int64
}

const damagedCounts = database.Damage("the stored counts of jobs are damaged")

// ParseQueueCounts parses meta.queues.
func ParseQueueCounts(list string) (map[string]QueueCount, error) {
	of := map[string]QueueCount{}
	for entry := range strings.FieldsSeq(list) {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return nil, damagedCounts
		}
		c, err := readQueueCount(entry[at+1:])
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", entry[:at], err)
		}
		of[entry[:at]] = c
	}
	return of, nil
}

// readQueueCount parses WAITING/UID/KEPT/KEPT_BYTES.
func readQueueCount(text string) (QueueCount, error) {
	var n [4]int64
	parts := strings.Split(text, "/")
	if len(parts) != len(n) {
		return QueueCount{}, damagedCounts
	}
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil {
			return QueueCount{}, errors.Join(err, damagedCounts)
		}
	}
	return QueueCount{n[0], int(n[1]), n[2], n[3]}, nil
}
