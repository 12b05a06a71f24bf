// Package ids assigns a number (seq) and an id to each new job. It skips numbers that users have chosen as
// ids, in a way that keeps users from predicting the next number.
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

// Assign returns an id and a seq for each draft; a draft that has an id keeps it. nextSeq is the first free
// seq, and nextSeqAfter the first free seq after the call. findTaken returns which of the given ids belong to
// jobs. If the id of a draft is taken, Assign returns an error.
func Assign(drafts []queue.Job, nextSeq int64, rng *rand.Rand, findTaken func(ids []string) (map[string]bool, error)) (
	ids []string, seqs []int64, nextSeqAfter int64, err error) {
	n := idAllocator{numbers: numbers{nextNumber: nextSeq, rng: rng, leapBound: firstLeapBound}, findTaken: findTaken,
		takenIDs: map[string]bool{}}
	var givenIDs []string
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			givenIDs = append(givenIDs, id)
		}
	}
	missing := len(drafts) - len(givenIDs)
	if err := n.checkTaken(givenIDs, missing); err != nil {
		return nil, nil, 0, err
	}
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			if n.takenIDs[id] {
				return nil, nil, 0, idExistsError(id, i, len(drafts))
			}
			n.takenIDs[id] = true
		}
	}
	ids, seqs = make([]string, len(drafts)), make([]int64, len(drafts))
	for i := range drafts {
		if ids[i] = drafts[i].ID; ids[i] == "" {
			if ids[i], err = n.nextFreeID(missing); err != nil {
				return nil, nil, 0, err
			}
			missing--
		}
		seqs[i] = n.nextNumber
		n.nextNumber++
	}
	if n.nextNumber > maxSeq {
		return nil, nil, 0, queue.Errorf(queue.CodeQueueFull,
			"all job numbers are used up; start a new service with an empty database")
	}
	return ids, seqs, n.nextNumber, nil
}

// idAllocator finds ids for the jobs of one request.
type idAllocator struct {
	numbers
	findTaken   func(ids []string) (map[string]bool, error)
	takenIDs    map[string]bool
	checkedUpTo int64 // checkTaken has looked up all numbers below checkedUpTo
}

// maxCheckedNumbers limits how many numbers one call of checkTaken looks up.
const maxCheckedNumbers = 1000

// checkTaken looks up which of the given ids belong to jobs. It also looks up the next numberCount numbers,
// at most maxCheckedNumbers of them.
func (a *idAllocator) checkTaken(ids []string, numberCount int) (err error) {
	a.checkedUpTo = a.nextNumber + int64(min(numberCount, maxCheckedNumbers))
	for number := a.nextNumber; number < a.checkedUpTo; number++ {
		ids = append(ids, strconv.FormatInt(number, 10))
	}
	taken, err := a.findTaken(ids)
	maps.Copy(a.takenIDs, taken)
	return err
}

// nextFreeID returns the next number that is not the id of another job. idsNeeded is how many ids the request
// still needs, including this one.
func (a *idAllocator) nextFreeID(idsNeeded int) (id string, err error) {
	for {
		if a.nextNumber >= a.checkedUpTo {
			if err := a.checkTaken(nil, idsNeeded+2*a.skippedCount); err != nil {
				return "", err
			}
		}
		if id = strconv.FormatInt(a.nextNumber, 10); !a.takenIDs[id] {
			return id, nil
		}
		a.skip() // the number is the id of another job, so no job gets it as its seq
	}
}

// A user could choose the next numbers as ids of jobs, so that the following requests must skip them all.
// After maxSkips skipped numbers, a request therefore leaps ahead by a random distance. The maximum distance
// doubles with each leap, so no user can predict the next free number.
const (
	maxSkips       = 1000
	firstLeapBound = 1024
	maxLeapBound   = 1 << 40
	maxSeq         = 1 << 62 // far above any number that leaps can reach
)

// numbers searches free numbers for the jobs of one request.
type numbers struct {
	nextNumber   int64 // the first number that may be free
	skippedCount int
	leapBound    int64 // upper bound of the next leap's distance
	rng          *rand.Rand
}

// skip moves past a number that is the id of a job. After maxSkips calls, each call also leaps ahead.
func (n *numbers) skip() {
	n.nextNumber++
	if n.skippedCount++; n.skippedCount <= maxSkips {
		return
	}
	n.nextNumber += n.rng.Int64N(n.leapBound)
	n.leapBound = min(2*n.leapBound, maxLeapBound)
}

func idExistsError(id string, i, count int) error {
	e := &queue.Error{Code: queue.CodeExists, Field: "id",
		Message: fmt.Sprintf("another job has the id %q; choose another id, or leave the id out to get a number", id)}
	if count > 1 {
		return e.WithIndex(i + 1)
	}
	return e
}
