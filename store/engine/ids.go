package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
)

// NewJob implements rules.Tx.
func (t *Tx) NewJob(draft *queue.Job) (at int, seq int64, id string, err error) {
	text, err := records.EncodeTexts(draft.Execution)
	if err != nil {
		return 0, 0, "", err
	}
	receipt := store.Receipt{IDs: make([]string, 1), Seqs: make([]int64, 1)}
	if err := t.assignIDs([]queue.Job{*draft}, &receipt); err != nil {
		return 0, 0, "", err
	}
	if h := &t.s.mem.hooks; draft.UID == h.UID {
		if err := t.recordOwner(draft.UID, h.Owner); err != nil {
			return 0, 0, "", err
		}
	}
	t.drafts = append(slices.Clip(t.drafts), text)
	return len(t.drafts) - 1, receipt.Seqs[0], receipt.IDs[0], nil
}

// assignIDs assigns a seq and an id to each draft. If an id is taken, it returns an error for all.
func (t *Tx) assignIDs(drafts []queue.Job, receipt *store.Receipt) error {
	n := idAllocator{t: t, numberSource: numberSource{next: t.s.mem.nextSeq, rng: t.s.rng, window: firstLeap},
		takenIDs: map[string]bool{}}
	var given []string
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			given = append(given, id)
		}
	}
	missing := len(drafts) - len(given)
	if err := n.check(given, missing); err != nil {
		return err
	}
	for i := range drafts {
		if id := drafts[i].ID; id != "" {
			if n.takenIDs[id] {
				return exists(id, i, len(drafts))
			}
			n.takenIDs[id] = true
		}
	}
	for i := range drafts {
		receipt.IDs[i] = drafts[i].ID
		if drafts[i].ID == "" {
			id, err := n.nextFree(missing)
			if err != nil {
				return err
			}
			receipt.IDs[i] = id
			missing--
		}
		receipt.Seqs[i] = n.next
		n.next++
	}
	if n.next > maxSeq {
		return queue.Errorf(queue.CodeFull, "all job numbers are used up; start a new service with an empty database")
	}
	t.s.mem.nextSeq = n.next
	return nil
}

// idAllocator finds ids for the jobs of one request.
type idAllocator struct {
	numberSource
	t           *Tx
	takenIDs    map[string]bool
	checkedUpTo int64 // the numbers from next to before this one were checked
}

// maxIDCheck bounds the numbers that one query checks.
const maxIDCheck = 1000

// check finds out which of these ids, and which of the next numbers, are already ids of jobs.
func (n *idAllocator) check(ids []string, numbers int) (err error) {
	n.checkedUpTo = n.next + int64(min(numbers, maxIDCheck))
	for number := n.next; number < n.checkedUpTo; number++ {
		ids = append(ids, strconv.FormatInt(number, 10))
	}
	taken, err := n.t.takenIDs(ids)
	maps.Copy(n.takenIDs, taken)
	return err
}

// nextFree moves to the next number that is not the id of another job, and returns it as an id. missing is
// how many more ids are needed.
func (n *idAllocator) nextFree(missing int) (id string, err error) {
	for {
		if n.next >= n.checkedUpTo {
			if err := n.check(nil, missing+2*n.skippedCount); err != nil {
				return "", err
			}
		}
		if id = strconv.FormatInt(n.next, 10); !n.takenIDs[id] {
			return id, nil
		}
		n.skip() // this number is the id of another job, so it is never assigned as a seq
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

// numberSource finds numbers for the jobs of one request.
type numberSource struct {
	next         int64
	skippedCount int
	window       int64
	rng          *rand.Rand
}

func (n *numberSource) skip() {
	n.next++
	if n.skippedCount++; n.skippedCount <= maxSkips {
		return
	}
	n.next += n.rng.Int64N(n.window)
	n.window = min(2*n.window, maxLeap)
}

func exists(id string, i, count int) error {
	e := &queue.Error{Code: queue.CodeExists, Field: "id",
		Message: fmt.Sprintf("another job has the id %q; choose another id, or leave the id out to get a number", id)}
	if count > 1 {
		return e.WithIndex(i + 1)
	}
	return e
}
