// Package ids assigns a number (seq) and an id to each new job. It skips numbers that users have chosen as
// ids, in a way that keeps users from predicting the next number.
//
// Start with AssignIDs. See docs/decisions/0008.
package ids

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// AssignIDs returns an id and a seq for each draft; a draft that has an id keeps it. nextSeq is the first free
// seq, and newNextSeq the first free seq after the call. findTakenIDs returns which of the given ids belong to
// jobs. If the id of a draft is taken, AssignIDs returns an error.
func AssignIDs(drafts []queue.Job, nextSeq int64, rng *rand.Rand,
	findTakenIDs func(ids []string) (map[string]bool, error)) (
	ids []string, seqs []int64, newNextSeq int64, err error) {
	n := idAllocator{nextNumber: nextSeq, nextLeapMaxDistance: firstLeapMaxDistance, rng: rng,
		findTakenIDs: findTakenIDs, takenIDs: map[string]bool{}}
	var givenIDs []string
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			givenIDs = append(givenIDs, id)
		}
	}
	missing := len(drafts) - len(givenIDs)
	if err := n.lookUpTakenIDs(givenIDs, missing); err != nil {
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
	nextNumber          int64 // the first number that may be free
	skippedCount        int
	nextLeapMaxDistance int64 // upper bound of the next leap's distance
	rng                 *rand.Rand
	findTakenIDs        func(ids []string) (map[string]bool, error)
	takenIDs            map[string]bool
	checkedUpToNumber   int64 // lookUpTakenIDs has looked up all numbers below checkedUpToNumber
}

// maxNumbersPerLookup limits how many numbers one call of lookUpTakenIDs looks up.
const maxNumbersPerLookup = 1000

// lookUpTakenIDs looks up which of the given ids belong to jobs. It also looks up the next nextNumberCount numbers,
// at most maxNumbersPerLookup of them.
func (a *idAllocator) lookUpTakenIDs(ids []string, nextNumberCount int) (err error) {
	a.checkedUpToNumber = a.nextNumber + int64(min(nextNumberCount, maxNumbersPerLookup))
	for number := a.nextNumber; number < a.checkedUpToNumber; number++ {
		ids = append(ids, strconv.FormatInt(number, 10))
	}
	taken, err := a.findTakenIDs(ids)
	maps.Copy(a.takenIDs, taken)
	return err
}

// nextFreeID returns the next number that is not the id of another job. idsNeeded is how many ids the request
// still needs, including this one.
func (a *idAllocator) nextFreeID(idsNeeded int) (id string, err error) {
	for {
		if a.nextNumber >= a.checkedUpToNumber {
			if err := a.lookUpTakenIDs(nil, idsNeeded+2*a.skippedCount); err != nil {
				return "", err
			}
		}
		if id = strconv.FormatInt(a.nextNumber, 10); !a.takenIDs[id] {
			return id, nil
		}
		a.skipTakenNumber() // the number is the id of another job, so no job gets it as its seq
	}
}

// A user could choose the next numbers as ids of jobs, so that the following requests must skip them all.
// After maxSkipsBeforeLeap skipped numbers, a request therefore leaps ahead by a random distance. The maximum distance
// doubles with each leap, so no user can predict the next free number.
const (
	maxSkipsBeforeLeap   = 1000
	firstLeapMaxDistance = 1024
	maxLeapDistance      = 1 << 40
	maxSeq               = 1 << 62 // far above any number that leaps can reach
)

// skipTakenNumber moves past a number that is the id of a job. After maxSkipsBeforeLeap calls, each call also leaps
// ahead.
func (a *idAllocator) skipTakenNumber() {
	a.nextNumber++
	if a.skippedCount++; a.skippedCount <= maxSkipsBeforeLeap {
		return
	}
	a.nextNumber += a.rng.Int64N(a.nextLeapMaxDistance)
	a.nextLeapMaxDistance = min(2*a.nextLeapMaxDistance, maxLeapDistance)
}

func idExistsError(id string, draftIndex, draftCount int) error {
	e := &queue.Error{Code: queue.CodeExists, Field: "id",
		Message: fmt.Sprintf("another job has the id %q; choose another id, or leave the id out to get a number", id)}
	if draftCount > 1 {
		return e.WithBatchIndex(draftIndex + 1)
	}
	return e
}
