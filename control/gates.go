package control

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// GateView is a lock, a rate or a resource as the wire shows it.
type GateView struct {
	Key  string `json:"key"`
	Kind string `json:"kind"`           // lock, rate or resource
	Most int    `json:"most"`           // jobs at once, starts in a period, or units
	Rate string `json:"rate,omitempty"` // n/period
	Used int    `json:"used"`           // of them now
	Jobs *int64 `json:"jobs,omitempty"` // that name it and have not ended
	User string `json:"user,omitempty"` // whose it is, "" for everybody's
	Node string `json:"node,omitempty"` // whose units they are, if machines share the queue
	Set  bool   `json:"set"`            // its rule was set; else it is what the newest job said or, of everybody's key, the first that names it
}

// GateSet sets the rule of a key of everybody's, which begins with @, or takes it away.
type GateSet struct {
	Key   string  `json:"key"`
	Lock  *int    `json:"lock,omitempty"`  // jobs at once, 1 to 10000
	Rate  *string `json:"rate,omitempty"`  // n/period
	Unset string  `json:"unset,omitempty"` // lock or rate
}

// Gates asks for those after a cursor.
type Gates struct {
	Cursor string `json:"cursor,omitempty"`
}

// GateList lists gates: everybody's first. There are others after Next, if that is not "".
type GateList struct {
	Gates []GateView `json:"gates"`
	Next  string     `json:"next,omitempty"`
}

// Rule returns the rule that the key gets; its N is 0 if the rule is removed.
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

// GatePosition is where a list of gates goes on.
type GatePosition struct {
	UID  int
	Kind queue.GateKind
	Key  string
}

// Position reads the cursor.
func (p *Gates) Position() (at GatePosition, err error) {
	if p.Cursor == "" {
		return at, nil
	}
	words := strings.SplitN(p.Cursor, " ", 3)
	if len(words) == 3 {
		kind := 0
		at.UID, err = strconv.Atoi(words[0])
		if err == nil {
			kind, err = strconv.Atoi(words[1])
		}
		at.Kind, at.Key = queue.GateKind(kind), words[2]
	}
	if len(words) < 3 || err != nil || at.Kind == 0 || at.Key == "" {
		return at, queue.Invalid("cursor", `must be a cursor from gate.list (field "next" of its answer)`)
	}
	return at, nil
}

// GateCursor is the cursor of a list that goes on after a gate.
func GateCursor(at GatePosition) string { return fmt.Sprintf("%d %d %s", at.UID, at.Kind, at.Key) }
