package cli

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// toSend is a job of a file that has not been sent yet.
type toSend struct {
	raw     json.RawMessage
	line    int
	at      int      // its place in the file
	entries int      // arguments and variables
	id      string   // "" for a number
	after   []string // ids that it waits for
	expires *queue.Millis
}

// ahead keeps jobs back that wait for others which come later in a file of several requests: one can name
// jobs of its own, those of earlier ones, and those of the queue.
type ahead struct {
	seed  maphash.Seed
	sent  map[uint64]bool // ids
	held  []toSend
	moved bool // some have been kept back
}

// maxHeld is up to how many jobs are kept back: then all are sent, for what they wait for is in the queue
// rather than in the rest of the file.
const maxHeld = queue.MaxDependencies

// namesOf are the ids of what a spec waits for.
func namesOf(s *queue.Spec) []string {
	names := make([]string, len(s.DependsOn))
	for i, d := range s.DependsOn {
		names[i], _, _ = strings.Cut(d, ":")
	}
	return names
}

// now are those of a request's jobs that may be sent: they wait for none that is not known yet.
func (a *ahead) now(part []toSend) []toSend {
	here := map[string]bool{}
	for i := range part {
		here[part[i].id] = true
	}
	unknown := func(id string) bool { return !here[id] && !a.sent[maphash.String(a.seed, id)] }
	for again := true; again; {
		again = false
		rest := part[:0:0]
		for _, j := range part {
			if !slices.ContainsFunc(j.after, unknown) {
				rest = append(rest, j)
				continue
			}
			a.held, a.moved, again = append(a.held, j), true, true // others may wait for it
			delete(here, j.id)
		}
		part = rest
	}
	return a.note(part)
}

// note remembers the ids of jobs that are sent.
func (a *ahead) note(part []toSend) []toSend {
	for i := range part {
		if part[i].id != "" {
			a.sent[maphash.String(a.seed, part[i].id)] = true
		}
	}
	return part
}

// last are the jobs that are left, each after those of them that it waits for.
func (a *ahead) last(part []toSend) ([]toSend, error) {
	if len(a.held) == 0 {
		return part, nil
	}
	rest := append(a.held, part...)
	a.held = nil
	byID := map[string]int{}
	for i := range rest {
		byID[rest[i].id] = i
	}
	const begun, done = 1, 2
	state := make([]int, len(rest))
	sorted := make([]toSend, 0, len(rest))
	var visit func(i int) error
	visit = func(i int) error {
		if state[i] == done {
			return nil
		}
		if state[i] == begun {
			return atLine(queue.Invalid("depends_on", "job %q depends on itself through other jobs; remove one of these dependencies", queue.Clip(rest[i].id)), rest[i].line)
		}
		state[i] = begun
		for _, id := range rest[i].after {
			if other, here := byID[id]; here {
				if err := visit(other); err != nil {
					return err
				}
			}
		}
		state[i] = done
		sorted = append(sorted, rest[i])
		return nil
	}
	for i := range rest {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}
