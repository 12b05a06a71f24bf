package sql

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// NewJob implements rules.Tx.
func (t *tx) NewJob(draft *queue.Job) (at int, seq int64, id string, err error) {
	text, err := textsOf(draft.Execution)
	if err != nil {
		return 0, 0, "", err
	}
	receipt := store.Receipt{IDs: make([]string, 1), Seqs: make([]int64, 1)}
	if err := t.nameAll([]queue.Job{*draft}, &receipt); err != nil {
		return 0, 0, "", err
	}
	if h := &t.s.mem.hooks; draft.UID == h.UID {
		if err := t.own(draft.UID, h.Owner); err != nil {
			return 0, 0, "", err
		}
	}
	t.drafts = append(slices.Clip(t.drafts), text)
	return len(t.drafts) - 1, receipt.Seqs[0], receipt.IDs[0], nil
}

// nameAll gives each draft its seq and id; an id that is taken refuses all.
func (t *tx) nameAll(drafts []queue.Job, receipt *store.Receipt) error {
	taken := make(map[string]bool)
	for i := range drafts {
		id := drafts[i].ID
		if id == "" {
			continue
		}
		there, err := t.taken(id)
		if err != nil {
			return err
		}
		if there || taken[id] {
			return exists(id, i, len(drafts))
		}
		taken[id] = true
	}
	next := numbering{at: t.s.mem.nextSeq, dice: t.s.dice, window: leapFirst}
	for i := range drafts {
		receipt.Seqs[i], receipt.IDs[i] = next.at, drafts[i].ID
		for drafts[i].ID == "" {
			id := strconv.FormatInt(next.at, 10)
			there, err := t.taken(id)
			if err != nil {
				return err
			}
			if !there && !taken[id] {
				receipt.Seqs[i], receipt.IDs[i] = next.at, id
				break
			}
			next.skip() // that number is somebody's name: skipped for ever
		}
		next.at++
	}
	if next.at > maxSeq {
		return queue.Errorf(queue.CodeFull, "there are no numbers left for new jobs; make a new queue")
	}
	t.s.mem.nextSeq = next.at
	return nil
}

// A user could name jobs by the numbers that are due next, so that each request has to
// skip them. After skipMost of them a request leaps to a random number in a window that
// doubles with each leap, so nobody can name the next free number in advance.
const (
	skipMost  = 1000
	leapFirst = 1024
	leapMost  = 1 << 40
	maxSeq    = 1 << 62 // far beyond what leaps reach
)

// numbering finds numbers for the jobs of one request.
type numbering struct {
	at      int64
	skipped int
	window  int64
	dice    *rand.Rand
}

func (n *numbering) skip() {
	n.at++
	if n.skipped++; n.skipped <= skipMost {
		return
	}
	n.at += n.dice.Int64N(n.window)
	n.window = min(2*n.window, leapMost)
}

func exists(id string, i, of int) error {
	e := &queue.Error{Code: queue.CodeExists, Field: "id", Message: fmt.Sprintf("%q is taken; choose another, or leave it out to get a number", id)}
	if of > 1 {
		return e.At(i + 1)
	}
	return e
}
