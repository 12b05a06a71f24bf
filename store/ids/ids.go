// Package ids assigns a number (seq) and an id to each new job. It skips numbers that users have chosen as ids.
// The way it skips them keeps users from predicting the next number.
//
// Start with Assign. See docs/decisions/0008.
package ids

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// Assign assigns a seq and an id to each draft. next is the first free seq, and after is the first free seq
// after the call. The callback returns which of the given ids are taken. If any draft has a taken id, Assign
// returns an error and assigns nothing.
func Assign(drafts []queue.Job, next int64, rng *rand.Rand, taken func(ids []string) (map[string]bool, error)) (
	ids []string, seqs []int64, after int64, err error) {
	n := allocator{numbers: numbers{next: next, rng: rng, window: firstLeap}, lookUp: taken, taken: map[string]bool{}}
	var given []string
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			given = append(given, id)
		}
	}
	missing := len(drafts) - len(given)
	if err := n.checkTaken(given, missing); err != nil {
		return nil, nil, 0, err
	}
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			if n.taken[id] {
				return nil, nil, 0, idExistsError(id, i, len(drafts))
			}
			n.taken[id] = true
		}
	}
	ids, seqs = make([]string, len(drafts)), make([]int64, len(drafts))
	for i := range drafts {
		if ids[i] = drafts[i].ID; ids[i] == "" {
			if ids[i], err = n.nextFree(missing); err != nil {
				return nil, nil, 0, err
			}
			missing--
		}
		seqs[i] = n.next
		n.next++
	}
	if n.next > maxSeq {
		return nil, nil, 0, queue.Errorf(queue.CodeQueueFull,
			"all job numbers are used up; start a new service with an empty database")
	}
	return ids, seqs, n.next, nil
}

// allocator finds ids for the jobs of one request.
type allocator struct {
	numbers
	lookUp      func(ids []string) (map[string]bool, error)
	taken       map[string]bool
	checkedUpTo int64 // checkTaken has looked up the numbers from next to checkedUpTo-1
}

// maxCheck limits the numbers that one call of allocator.checkTaken checks.
const maxCheck = 1000

// checkTaken finds out which of the given ids are already ids of jobs. It also checks the next numbers: as many as
// requested, up to maxCheck.
func (a *allocator) checkTaken(ids []string, numbers int) (err error) {
	a.checkedUpTo = a.next + int64(min(numbers, maxCheck))
	for number := a.next; number < a.checkedUpTo; number++ {
		ids = append(ids, strconv.FormatInt(number, 10))
	}
	taken, err := a.lookUp(ids)
	maps.Copy(a.taken, taken)
	return err
}

// nextFree moves to the next number that is not the id of another job, and returns it as an id. missing is
// how many more ids are needed.
func (a *allocator) nextFree(missing int) (id string, err error) {
	for {
		if a.next >= a.checkedUpTo {
			if err := a.checkTaken(nil, missing+2*a.skippedCount); err != nil {
				return "", err
			}
		}
		if id = strconv.FormatInt(a.next, 10); !a.taken[id] {
			return id, nil
		}
		a.skip() // the number is the id of another job, so no job gets it as its seq
	}
}

// A user could use the next numbers as ids for jobs, so that each request must skip them. After maxSkips
// skipped numbers, a request therefore leaps ahead by a random distance. The maximum distance doubles with
// each leap, so no user can predict the next free number.
const (
	maxSkips  = 1000
	firstLeap = 1024
	maxLeap   = 1 << 40
	maxSeq    = 1 << 62 // far above any number that leaps can reach
)

// numbers finds numbers for the jobs of one request.
type numbers struct {
	next         int64 // the first number that may be free
	skippedCount int
	window       int64 // upper bound of the next leap's distance
	rng          *rand.Rand
}

// skip moves past a number that is the id of a job. After maxSkips calls, each call also leaps ahead.
func (n *numbers) skip() {
	n.next++
	if n.skippedCount++; n.skippedCount <= maxSkips {
		return
	}
	n.next += n.rng.Int64N(n.window)
	n.window = min(2*n.window, maxLeap)
}

func idExistsError(id string, i, count int) error {
	e := &queue.Error{Code: queue.CodeExists, Field: "id",
		Message: fmt.Sprintf("another job has the id %q; choose another id, or leave the id out to get a number", id)}
	if count > 1 {
		return e.WithIndex(i + 1)
	}
	return e
}
