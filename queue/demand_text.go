package queue

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxQueueNameBytes is the maximum length of a queue's name, in bytes.
const MaxQueueNameBytes = 64

// ValidQueueName reports whether name is a valid queue name.
func ValidQueueName(name string) bool { return len(name) <= MaxQueueNameBytes && ValidID(name) }

// ratePeriods maps the letter of a period in a rate to its duration.
var ratePeriods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// parseDemandAmount parses a number from 1 to MaxDemandAmount. It accepts only digits.
func parseDemandAmount(text string) (n int, ok bool) {
	amount, err := strconv.ParseUint(text, 10, 32)
	return int(amount), err == nil && amount >= 1 && amount <= MaxDemandAmount
}

// ParseLockDemand parses a lock as users write it: KEY or KEY:n. The result for a shared key without a number, such as
// @db, has Amount 0: an operator sets the limit of such a key with `queuectl gate set`.
func ParseLockDemand(text string) (Demand, error) {
	key, count, counted := strings.Cut(text, ":")
	d := Demand{Kind: GateLock, GateKey: key, Amount: 1}
	if strings.HasPrefix(key, "@") && !counted {
		d.Amount = 0
	}
	if counted {
		n, ok := parseDemandAmount(count)
		if !ok {
			return d, InvalidFieldError("lock", "%q is not a lock; write KEY or KEY:N, with N from 1 to %d",
				ClipForMessage(text),
				MaxDemandAmount)
		}
		d.Amount = n
	}
	if !validDemandKey(d) {
		return d, invalidKeyError("lock", key)
	}
	return d, nil
}

// ParseRateDemand parses a rate as users write it: KEY=N/PERIOD. It also accepts a shared key without a rate, such as
// @api. The result then has Amount 0, because an operator sets the limit.
func ParseRateDemand(text string) (Demand, error) {
	key, rate, counted := strings.Cut(text, "=")
	if d := (Demand{Kind: GateRate, GateKey: key}); !counted && strings.HasPrefix(key, "@") && validDemandKey(d) {
		return d, nil
	}
	if !counted {
		key, rate = "", text
		if _, err := strconv.Atoi(text); err == nil {
			rate += "/m"
		}
	}
	count, period, _ := strings.Cut(rate, "/")
	d := Demand{Kind: GateRate, GateKey: key, RatePeriod: ratePeriods[period]}
	n, ok := parseDemandAmount(count)
	if !ok || d.RatePeriod == 0 {
		return d, InvalidFieldError("rate_limit", "%q is not a rate; write KEY=N/PERIOD like api=10/m, with N from 1 to %d "+
			"and a "+
			"period of s, m, h or d", ClipForMessage(text), MaxDemandAmount)
	}
	if !counted {
		return d, InvalidFieldError("rate_limit", "the rate %q has no key; write it like api=%s", ClipForMessage(text), rate)
	}
	if d.Amount = n; !validDemandKey(d) {
		return d, invalidKeyError("rate_limit", key)
	}
	return d, nil
}

// invalidKeyError returns the error for an invalid key of a lock or a rate.
func invalidKeyError(field, key string) error {
	return InvalidFieldError(field, "%q is not a valid key; use up to 128 letters, digits and . _ @ / -, starting with a "+
		"letter, a digit, or @ for a key that all users share", ClipForMessage(key))
}

// String returns the demand as users write it: a lock as KEY or KEY:n, a rate as KEY=n/period, and a resource
// as NAME=n.
func (d Demand) String() string {
	switch d.Kind {
	case GateLock:
		if d.Amount == 1 {
			return d.GateKey
		}
		return fmt.Sprintf("%s:%d", d.GateKey, d.Amount)
	case GateRate:
		return fmt.Sprintf("%s=%d/%s", d.GateKey, d.Amount, FormatRatePeriod(d.RatePeriod))
	case GateResource:
		return fmt.Sprintf("%s=%d", d.GateKey, d.Amount)
	}
	return d.GateKey
}

// FormatRatePeriod returns the period of a rate as users write it.
func FormatRatePeriod(period time.Duration) string {
	for name, d := range ratePeriods {
		if d == period {
			return name
		}
	}
	return FormatDuration(period)
}

// FirstDemandText returns the job's first demand of a kind as users write it, or nil if it has no demand of that
// kind.
func FirstDemandText(j *Job, kind GateKind) *string {
	if texts := demandTexts(j, kind); len(texts) > 0 {
		return &texts[0]
	}
	return nil
}

// demandTexts returns the job's demands of one kind as users write them.
func demandTexts(j *Job, kind GateKind) (texts []string) {
	for _, d := range j.Demands {
		if d.Kind == kind {
			texts = append(texts, d.String())
		}
	}
	return texts
}

// DemandedResourceUnits returns the number of units of each resource that a job needs, by the resource's name. It
// returns nil if the job needs no resources.
func DemandedResourceUnits(j *Job) map[string]int {
	var counts map[string]int
	for _, d := range j.Demands {
		if d.Kind == GateResource {
			if counts == nil {
				counts = map[string]int{}
			}
			counts[d.GateKey] = d.Amount
		}
	}
	return counts
}

// demandsOfSpec returns the demands for the locks, rates, resources and nodes in a spec, in the order in which a claim
// checks them. It ignores invalid ones, because checkFields has already reported them.
func demandsOfSpec(s *Spec) (demands []Demand) {
	add := func(d Demand, _ error) { demands = append(demands, d) }
	if s.NodeSelector != nil {
		add(Demand{Kind: GateNode, GateKey: *s.NodeSelector, Amount: 1}, nil)
	}
	if s.Lock != nil {
		add(ParseLockDemand(*s.Lock))
	}
	if s.RateLimit != nil {
		add(ParseRateDemand(*s.RateLimit))
	}
	if len(s.Resources) == 0 {
		return demands // without the cost of sorting, because few jobs need resources
	}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		n, _ := parseDemandAmount(s.Resources[name])
		add(Demand{Kind: GateResource, GateKey: name, Amount: n}, nil)
	}
	return demands
}

// dependencyConditionNames contains the names of dependency conditions, as users write them.
var dependencyConditionNames = []string{ParentCompleted: "completed", ParentDead: "dead", ParentEnded: "ended"}

// String returns the condition as users write it.
func (e DependencyCondition) String() string {
	return dependencyConditionNames[min(int(e), len(dependencyConditionNames)-1)]
}

// dependencyFailureNames contains the names that users write for the values of OnDependencyFailure.
var dependencyFailureNames = []string{DependencyFailureCancel: "cancel", DependencyFailureHold: "hold",
	DependencyFailureRun: "run"}

// String returns the value as users write it.
func (o OnDependencyFailure) String() string {
	return dependencyFailureNames[min(int(o), len(dependencyFailureNames)-1)]
}

// ParseDependency parses a dependency as users write it: ID or ID:condition.
func ParseDependency(text string) (Dependency, error) {
	id, name, hasCondition := strings.Cut(text, ":")
	d := Dependency{ParentID: id, Condition: ParentCompleted}
	if hasCondition {
		d.Condition = DependencyCondition(max(0, slices.Index(dependencyConditionNames, name)))
	}
	if !ValidID(id) || d.Condition == 0 {
		return d, InvalidFieldError("depends_on",
			"%q is not a dependency; write a job ID, ID:completed, ID:dead or ID:ended", ClipForMessage(text))
	}
	return d, nil
}

// resolveDependencies sets the job's dependencies and reports duplicates. It sets only the ids of the parents, because
// only the store can look up these jobs. It ignores malformed entries, because checkFields has already reported them.
func resolveDependencies(check fieldChecker, s *Spec, j *Job) {
	seen := make(map[string]bool, len(s.DependsOn))
	for _, text := range s.DependsOn {
		d, err := ParseDependency(text)
		if err != nil {
			continue
		}
		check(!seen[d.ParentID], "depends_on", "job %q is listed twice; list it once", ClipForMessage(d.ParentID))
		check(s.ID == nil || d.ParentID != *s.ID, "depends_on", "a job cannot depend on itself")
		seen[d.ParentID] = true
		j.DependsOn = append(j.DependsOn, d)
	}
	j.OnDependencyFailure = OnDependencyFailure(max(0,
		slices.Index(dependencyFailureNames, valueOrZero(s.OnDependencyFailure))))
}

// AppendResourceUnits appends the numbers of the units of one resource to text, such as "gpu=0,2". text may already
// contain other resources. If text is not empty, a space precedes the new part.
func AppendResourceUnits(text, resource string, units []int) string {
	words := make([]string, len(units))
	for i, u := range units {
		words[i] = strconv.Itoa(u)
	}
	if text != "" {
		text += " "
	}
	return text + resource + "=" + strings.Join(words, ",")
}

// ParseResourceUnits parses a text that AppendResourceUnits has written. It calls visit for every resource in the text.
func ParseResourceUnits(text string, visit func(name string, units []int)) {
	for entry := range strings.FieldsSeq(text) {
		name, list, _ := strings.Cut(entry, "=")
		var units []int
		for word := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(word); err == nil {
				units = append(units, n)
			}
		}
		visit(name, units)
	}
}

// PickFreeUnits returns the n lowest units that are not in takenUnits.
func PickFreeUnits(n int, takenUnits map[int]bool) (units []int) {
	for u := 0; len(units) < n; u++ {
		if !takenUnits[u] {
			units = append(units, u)
		}
	}
	return units
}
