package control

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// GateAPI lists gates and changes the rules of shared gates. A gate limits which jobs may run at the same time: it is a
// lock, a rate or a resource. A shared gate applies to the jobs of all users.
type GateAPI interface {
	// ListGates lists the shared gates and the gates of the caller.
	ListGates(ctx context.Context, p GateListParams) (GateList, error)
	// SetGateRule sets or removes the rule of a shared lock or rate. It returns the gate after the change.
	SetGateRule(ctx context.Context, p SetGateRuleParams) (GateView, error)
}

// GateView describes a lock, a rate or a resource in an answer.
type GateView struct {
	Key  string `json:"key"`
	Kind string `json:"kind"` // lock, rate or resource
	// Limit is the maximum number of running jobs (lock), of job starts in one period (rate), or of units in
	// use (resource).
	Limit          int    `json:"most"`
	Rate           string `json:"rate,omitempty"` // for a rate: maximum number of job starts per period, as n/period
	LimitUsage     int    `json:"used"`           // how much of Limit is in use now
	UnfinishedJobs *int64 `json:"jobs,omitempty"` // number of unfinished jobs that use the gate
	KeyOwner       string `json:"user,omitempty"` // user whose jobs share the key; "" for a key that all users share
	// Node is the node that has the resource. It is "" if only one node uses the queue.
	Node string `json:"node,omitempty"`
	// RuleIsExplicit means that the method gate.set has set the rule. Otherwise a job has set the rule. For a shared key,
	// it is the first job that named the key. For a user's own key, it is the newest job that named the key.
	RuleIsExplicit bool `json:"set"`
}

// SetGateRuleParams holds the parameters of the method gate.set, which sets or removes the rule of a shared lock or
// rate. The key of a shared gate begins with @.
type SetGateRuleParams struct {
	Key string `json:"key" rule:"sharedKey,required"`
	// maximum number of running jobs with this lock, 1 to 10000
	LockLimit    *int    `json:"lock,omitempty" rule:"lock"`
	RateLimit    *string `json:"rate,omitempty" rule:"rate"`      // maximum number of job starts per period, as n/period
	RuleToRemove string  `json:"unset,omitempty" rule:"gateRule"` // the rule to remove: lock or rate
}

// GateListParams requests the gates that follow the cursor.
type GateListParams struct {
	Cursor string `json:"cursor,omitempty" rule:"gateCursor"`
}

// GateList is a page of gates, shared gates first. NextCursor is the cursor of the next page, or "" on the last page.
type GateList struct {
	Gates      []GateView `json:"gates"`
	NextCursor string     `json:"next,omitempty"`
}

// RequestedRule returns the rule that the request sets for the key. Amount 0 means that the rule is removed.
func (p *SetGateRuleParams) RequestedRule() (queue.Demand, error) {
	switch {
	case p.LockLimit != nil:
		return queue.ParseLockDemand(p.Key + ":" + strconv.Itoa(*p.LockLimit))
	case p.RateLimit != nil:
		return queue.ParseRateDemand(p.Key + "=" + *p.RateLimit)
	case p.RuleToRemove == "lock":
		return queue.Demand{Kind: queue.GateLock, GateKey: p.Key}, nil
	}
	return queue.Demand{Kind: queue.GateRate, GateKey: p.Key}, nil
}

// GateListPosition identifies the last gate of a page. The next page begins after this gate.
type GateListPosition struct {
	OwnerUID int
	Kind     queue.GateKind
	Key      string
}

// DecodeCursor decodes the cursor.
func (p *GateListParams) DecodeCursor() (position GateListPosition, err error) {
	if p.Cursor == "" {
		return position, nil
	}
	words := strings.SplitN(p.Cursor, " ", 3)
	if len(words) == 3 {
		kind := 0
		position.OwnerUID, err = strconv.Atoi(words[0])
		if err == nil {
			kind, err = strconv.Atoi(words[1])
		}
		position.Kind, position.Key = queue.GateKind(kind), words[2]
	}
	if len(words) < 3 || err != nil || position.Kind == 0 || position.Key == "" {
		return position, queue.InvalidFieldError("cursor", `must be a cursor from gate.list (field "next" of its answer)`)
	}
	return position, nil
}

// EncodeGateCursor returns the cursor of the page that follows the gate at position.
func EncodeGateCursor(position GateListPosition) string {
	return fmt.Sprintf("%d %d %s", position.OwnerUID, position.Kind, position.Key)
}
