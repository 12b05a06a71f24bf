package control

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// GateAPI lists locks, rates and resources, and changes their shared rules. These gates limit which jobs may
// run at the same time.
type GateAPI interface {
	// GateList lists locks, rates and resources: the shared ones and the caller's.
	GateList(ctx context.Context, p GateListParams) (GateList, error)
	// GateSet sets or removes the rule of a shared key. It returns the gate after the change.
	GateSet(ctx context.Context, p GateSet) (GateView, error)
}

// GateView describes a lock, a rate or a resource in an answer.
type GateView struct {
	Key  string `json:"key"`
	Kind string `json:"kind"` // lock, rate or resource
	// Limit is the number of jobs that may run at the same time (lock), of job starts in one period (rate), or of
	// units (resource).
	Limit int    `json:"most"`
	Rate  string `json:"rate,omitempty"` // maximum rate of starts, as n/period
	Usage int    `json:"used"`           // how much of the limit is used now
	Jobs  *int64 `json:"jobs,omitempty"` // number of unfinished jobs that use the gate
	User  string `json:"user,omitempty"` // owner of the key; "" for a shared key
	// Node is the node that has the units of a resource. It is "" if only one node uses the queue.
	Node string `json:"node,omitempty"`
	// RuleStored means that the method gate.set has set the rule. Without that, a shared key has the rule of
	// the first job that named it, and a user's own key has the rule of the newest such job.
	RuleStored bool `json:"set"`
}

// GateSet holds the parameters of the method gate.set, which sets or removes the rule of a shared key. A shared key
// begins with @.
type GateSet struct {
	Key   string  `json:"key" rule:"sharedKey,required"`
	Lock  *int    `json:"lock,omitempty" rule:"lock"`      // maximum number of running jobs, 1 to 10000
	Rate  *string `json:"rate,omitempty" rule:"rate"`      // maximum rate of starts, as n/period
	Unset string  `json:"unset,omitempty" rule:"gateRule"` // the rule to remove: lock or rate
}

// GateListParams requests the gates after a cursor.
type GateListParams struct {
	Cursor string `json:"cursor,omitempty" rule:"gateCursor"`
}

// GateList is a page of gates, with shared ones first. Next is the cursor of the next page; "" on the last
// page.
type GateList struct {
	Gates []GateView `json:"gates"`
	Next  string     `json:"next,omitempty"`
}

// Rule returns the new rule of the key. Its Amount is 0 if the rule is to be removed.
func (p *GateSet) Rule() (queue.Demand, error) {
	switch {
	case p.Lock != nil:
		return queue.ParseLock(p.Key + ":" + strconv.Itoa(*p.Lock))
	case p.Rate != nil:
		return queue.ParseRate(p.Key + "=" + *p.Rate)
	case p.Unset == "lock":
		return queue.Demand{Kind: queue.GateLock, Key: p.Key}, nil
	}
	return queue.Demand{Kind: queue.GateRate, Key: p.Key}, nil
}

// GatePosition identifies the last gate of a page. The next page begins after it.
type GatePosition struct {
	UID  int
	Kind queue.GateKind
	Key  string
}

// Position parses the cursor.
func (p *GateListParams) Position() (position GatePosition, err error) {
	if p.Cursor == "" {
		return position, nil
	}
	words := strings.SplitN(p.Cursor, " ", 3)
	if len(words) == 3 {
		kind := 0
		position.UID, err = strconv.Atoi(words[0])
		if err == nil {
			kind, err = strconv.Atoi(words[1])
		}
		position.Kind, position.Key = queue.GateKind(kind), words[2]
	}
	if len(words) < 3 || err != nil || position.Kind == 0 || position.Key == "" {
		return position, queue.Invalid("cursor", `must be a cursor from gate.list (field "next" of its answer)`)
	}
	return position, nil
}

// GateCursor returns the cursor for the page after a gate.
func GateCursor(position GatePosition) string {
	return fmt.Sprintf("%d %d %s", position.UID, position.Kind, position.Key)
}
