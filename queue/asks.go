package queue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxQueueName is how long a queue's name may be, in bytes.
const MaxQueueName = 64

// ValidQueue reports whether a name may be that of a queue.
func ValidQueue(name string) bool { return len(name) <= MaxQueueName && ValidID(name) }

// periods are those of a rate, by their letters.
var periods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// parseAmount reads a number from 1 to MaxDemand. It accepts only digits.
func parseAmount(text string) (n int, ok bool) {
	amount, err := strconv.ParseUint(text, 10, 32)
	return int(amount), err == nil && amount >= 1 && amount <= MaxDemand
}

// ParseLock reads a lock as a person writes it: KEY, or KEY:n. Of everybody's key without a number n is 0: it
// has a rule of its own.
func ParseLock(text string) (Demand, error) {
	key, count, counted := strings.Cut(text, ":")
	d := Demand{Kind: GateLock, Key: key, N: 1}
	if strings.HasPrefix(key, "@") && !counted {
		d.N = 0
	}
	if counted {
		n, ok := parseAmount(count)
		if !ok {
			return d, Invalid("lock", "%q is not a lock; write KEY or KEY:N, with N from 1 to %d", Clip(text), MaxDemand)
		}
		d.N = n
	}
	if !validKey(d) {
		return d, Invalid("lock", "%q is not a valid key; use up to 128 letters, digits and . _ @ / -, starting with a letter, a digit, or @ for a key that all users share", Clip(key))
	}
	return d, nil
}

// ParseRate reads a rate as a person writes it: KEY=N/PERIOD, or a shared key alone, which has N = 0.
func ParseRate(text string) (Demand, error) {
	key, rate, counted := strings.Cut(text, "=")
	if d := (Demand{Kind: GateRate, Key: key}); !counted && strings.HasPrefix(key, "@") && validKey(d) {
		return d, nil
	}
	if !counted {
		key, rate = "", text
		if _, err := strconv.Atoi(text); err == nil {
			rate += "/m"
		}
	}
	count, period, _ := strings.Cut(rate, "/")
	d := Demand{Kind: GateRate, Key: key, Per: periods[period]}
	n, ok := parseAmount(count)
	if !ok || d.Per == 0 {
		return d, Invalid("rate_limit", "%q is not a rate; write KEY=N/PERIOD like api=10/m, with N from 1 to %d and a period of s, m, h or d", Clip(text), MaxDemand)
	}
	if !counted {
		return d, Invalid("rate_limit", "the rate %q has no key; write it like api=%s", Clip(text), rate)
	}
	if d.N = n; !validKey(d) {
		return d, Invalid("rate_limit", "%q is not a valid key; use up to 128 letters, digits and . _ @ / -, starting with a letter, a digit, or @ for a key that all users share", Clip(key))
	}
	return d, nil
}

// String is the demand as a person writes it: KEY or KEY:n of a lock, KEY=n/period of a rate,
// NAME=n of a resource.
func (d Demand) String() string {
	switch d.Kind {
	case GateLock:
		if d.N == 1 {
			return d.Key
		}
		return fmt.Sprintf("%s:%d", d.Key, d.N)
	case GateRate:
		return fmt.Sprintf("%s=%d/%s", d.Key, d.N, FormatPeriod(d.Per))
	case GateResource:
		return fmt.Sprintf("%s=%d", d.Key, d.N)
	}
	return d.Key
}

// FormatPeriod is the period of a rate as a person writes it.
func FormatPeriod(per time.Duration) string {
	for name, d := range periods {
		if d == per {
			return name
		}
	}
	return FormatDuration(per)
}

// AsWritten is the first demand of a job of a kind, as a person writes it, nil if there is none.
func AsWritten(j *Job, kind GateKind) *string {
	for _, d := range j.Demands {
		if d.Kind == kind {
			text := d.String()
			return &text
		}
	}
	return nil
}

// Units are the units of each resource that a job needs, nil if it needs none.
func Units(j *Job) map[string]int {
	var of map[string]int
	for _, d := range j.Demands {
		if d.Kind == GateResource {
			if of == nil {
				of = map[string]int{}
			}
			of[d.Key] = d.N
		}
	}
	return of
}

func resourcesOf(j *Job) map[string]string {
	var of map[string]string
	for name, n := range Units(j) {
		if of == nil {
			of = map[string]string{}
		}
		of[name] = strconv.Itoa(n)
	}
	return of
}

// resolveDemands returns the gates named in a spec, in the order in which the claim checks them. checkFields has
// already reported invalid ones.
func resolveDemands(s *Spec) (list []Demand) {
	add := func(d Demand, _ error) {
		list = append(list, d)
		// This is an insertion sort: there are few entries, and package slices would enlarge the client.
		for i := len(list) - 1; i > 0 && list[i].before(&list[i-1]); i-- {
			list[i], list[i-1] = list[i-1], list[i]
		}
	}
	if s.Lock != nil {
		add(ParseLock(*s.Lock))
	}
	if s.On != nil {
		add(Demand{Kind: GateNode, Key: *s.On, N: 1}, nil)
	}
	if s.RateLimit != nil {
		add(ParseRate(*s.RateLimit))
	}
	for name, count := range s.Resources {
		n, _ := parseAmount(count)
		add(Demand{Kind: GateResource, Key: name, N: n}, nil)
	}
	return list
}

// before reports whether a demand's gate is looked at before another one's.
func (d *Demand) before(other *Demand) bool {
	if d.Kind != other.Kind {
		return d.Kind < other.Kind
	}
	return d.Key < other.Key
}

// parentEnds are how a job may have to end for those that wait for it.
var parentEnds = map[string]ParentEnd{"completed": ParentCompleted, "dead": ParentDead, "ended": ParentEnded}

// String is the end as a person writes it.
func (e ParentEnd) String() string {
	for name, end := range parentEnds {
		if end == e {
			return name
		}
	}
	return ""
}

// otherwises are what may become of a job when one that it waits for does not end as asked.
var otherwises = []string{OtherwiseCancel: "cancel", OtherwiseHold: "hold", OtherwiseRun: "run"}

// String is the way as a person writes it.
func (o Otherwise) String() string { return otherwises[min(int(o), len(otherwises)-1)] }

// ParseDependency reads a dependency as a person writes it: ID, or ID:how.
func ParseDependency(text string) (id string, how ParentEnd, err error) {
	id, word, worded := strings.Cut(text, ":")
	how = ParentCompleted
	if worded {
		how = parentEnds[word]
	}
	if !ValidID(id) || how == 0 {
		return id, how, Invalid("depends_on", "%q is not a dependency; write a job ID, ID:completed, ID:dead or ID:ended", Clip(text))
	}
	return id, how, nil
}

// resolveDependencies sets the job's dependencies and reports duplicates. The store later finds the parents by their
// ids. checkFields has already reported malformed entries.
func resolveDependencies(check checker, s *Spec, j *Job) {
	seen := make(map[string]bool, len(s.DependsOn))
	for _, text := range s.DependsOn {
		id, how, err := ParseDependency(text)
		if err != nil {
			continue
		}
		check(!seen[id], "depends_on", "job %q is listed twice; list it once", Clip(id))
		check(s.ID == nil || id != *s.ID, "depends_on", "a job cannot depend on itself")
		seen[id] = true
		j.After = append(j.After, Dependency{ID: id, How: how})
	}
	j.OtherwiseDo = Otherwise(max(0, slices.Index(otherwises, or(s.OnDependency, ""))))
}

// FormatUnits adds the units of a resource that a job holds to what it holds of others: NAME=0,2 apart by
// blanks.
func FormatUnits(text, name string, units []int) string {
	words := make([]string, len(units))
	for i, u := range units {
		words[i] = strconv.Itoa(u)
	}
	if text != "" {
		text += " "
	}
	return text + name + "=" + strings.Join(words, ",")
}

// ParseUnits calls each with each resource of such a text, and the units of it.
func ParseUnits(text string, each func(name string, units []int)) {
	for entry := range strings.FieldsSeq(text) {
		name, list, _ := strings.Cut(entry, "=")
		var units []int
		for word := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(word); err == nil {
				units = append(units, n)
			}
		}
		each(name, units)
	}
}

// FreeUnits are the first n units that are not taken.
func FreeUnits(n int, taken map[int]bool) (units []int) {
	for u := 0; len(units) < n; u++ {
		if !taken[u] {
			units = append(units, u)
		}
	}
	return units
}
