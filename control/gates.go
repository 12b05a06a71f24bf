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

func (p *GateSet) check() error {
	_, err := p.Rule()
	return err
}

// Rule is what the key is to go by; its N is 0 if its rule is taken away.
func (p *GateSet) Rule() (d queue.Demand, err error) {
	given := 0
	for _, is := range []bool{p.Lock != nil, p.Rate != nil, p.Unset != ""} {
		if is {
			given++
		}
	}
	switch {
	case !strings.HasPrefix(p.Key, "@") || !queue.ValidID(p.Key[1:]):
		return d, queue.Invalid("key", "%q is no key of everybody's: @, then up to 128 letters, digits and . _ @ / -, beginning with a letter or a digit", queue.Clip(p.Key))
	case given == 0:
		return d, queue.Invalid("lock", "is missing, and so are rate and unset; give one of them")
	case given > 1:
		return d, queue.Invalid("lock", "rate and unset: give only one of them")
	case p.Lock != nil:
		if d, err = queue.ParseLock(p.Key + ":" + strconv.Itoa(*p.Lock)); err != nil {
			err = queue.Invalid("lock", "%d is not between 1 and %d", *p.Lock, queue.MaxDemand)
		}
		return d, err
	case p.Rate != nil:
		if d, err = queue.ParseRate(p.Key + "=" + *p.Rate); err != nil {
			err = queue.Invalid("rate", "%q is not N/PERIOD with N from 1 to %d and a period of s, m, h or d, like 10/m", queue.Clip(*p.Rate), queue.MaxDemand)
		}
		return d, err
	}
	kind := map[string]queue.GateKind{"lock": queue.GateLock, "rate": queue.GateRate}[p.Unset]
	if kind == 0 {
		return d, queue.Invalid("unset", "%q is neither lock nor rate", queue.Clip(p.Unset))
	}
	return queue.Demand{Kind: kind, Key: p.Key}, nil
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
		return at, queue.Invalid("cursor", "is not one that gate.list gave")
	}
	return at, nil
}

// GateCursor is the cursor of a list that goes on after a gate.
func GateCursor(at GatePosition) string { return fmt.Sprintf("%d %d %s", at.UID, at.Kind, at.Key) }
