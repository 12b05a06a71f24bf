package sql

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A claim prefetch is sent before the first operation of its transaction. Its rows are used unless a write
// of the transaction may have changed them. The end of a leased job does not discard them, but that job is
// not leased again.
func TestClaimPrefetchSeesTheTransaction(t *testing.T) {
	server := pgserver.Shared(t)
	important := draft(func(j *queue.Job) { j.Priority = 9 })
	cases := map[string]struct {
		ended []int // indexes into the first three jobs, of which the third is leased
		do    func(t *Tx) error
		want  []int64
		taken bool // whether the prefetched rows are used
	}{
		"nothing":   {want: []int64{1, 4}, taken: true},
		"an end":    {ended: []int{2}, want: []int64{1, 4}, taken: true},
		"a new job": {want: []int64{1, 7}, do: func(t *Tx) error { return enqueueIn(t, important) }},
		"a cancellation": {want: []int64{1, 5}, do: func(t *Tx) error {
			return t.rules.Change(4,
				store.Change{Verb: queue.VerbCancel})
		}},
		"a statement": {want: []int64{1, 5}, do: func(t *Tx) error {
			return t.Exec(`UPDATE jobs SET rank = rank + 1 WHERE seq = 4`)
		}},
	}
	for n := range 2 * len(cases) {
		name := slices.Sorted(maps.Keys(cases))[n/2]
		c, early := cases[name], n%2 == 0
		t.Run(fmt.Sprintf("%s, read early: %v", name, early), func(t *testing.T) {
			s, err := OpenServer(t.Context(), server.Create(t),
				Options{Order: queue.Order{Scheduling: queue.ByPriority, Interval: time.Minute},
					Node: NodeConfig{Name: "a", DirID: "a", Lease: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			enqueueOn(t, s, important, draft(), draft(), draft(), draft(), draft())
			jobs := claimOn(t, s, 3)
			if _, err := s.Exchange(t.Context(), store.Report{Released: []queue.Lease{jobs[0].Lease()},
				Ended: []store.Settlement{completedOn(s, &jobs[1])}}); err != nil {
				t.Fatal(err)
			}
			s.prefetchThreshold = 1
			var got []queue.Job
			expected, taken := false, false
			// If there are attempts to prewrite, the prefetched rows are not read immediately.
			var ends []store.Settlement
			if early {
				ends = []store.Settlement{completedOn(s, &jobs[2])}
			}
			err = s.doOp(t.Context(), &op{class: Urgent, wantedJobs: 2, endedAttempts: ends, run: func(t *Tx) (err error) {
				expected = t.claimPrefetch != nil
				for _, i := range c.ended {
					if _, err := t.rules.Exchange(&store.Report{Ended: []store.Settlement{completedOn(s, &jobs[i])}}); err != nil {
						return err
					}
				}
				if c.do != nil {
					if err := c.do(t); err != nil {
						return err
					}
				}
				taken = t.claimPrefetch != nil
				got, _, err = t.rules.Claim(2)
				return err
			}})
			if err != nil || !slices.Equal(seqs(got), c.want) {
				t.Errorf("got %v, %v; want %v", seqs(got), err, c.want)
			}
			if !expected || taken != c.taken {
				t.Errorf("prefetch sent: %v, want true; its result was used: %v, want %v", expected, taken, c.taken)
			}
		})
	}
}

// enqueueIn enqueues a job within a transaction.
func enqueueIn(t *Tx, j queue.Job) error {
	list, err := allTexts([]queue.Job{j})
	if err != nil {
		return err
	}
	_, err = t.enqueue(store.Request{Drafts: []queue.Job{j}, UID: j.UID}, list)
	return err
}

// The rows of a claim prefetch can be read after later statements were sent. They are lost if the result of a
// later statement is read first.
func TestStartedQueryKeepsReplyOrder(t *testing.T) {
	s := openNode(t, pgserver.Shared(t).Create(t), "a")
	enqueueOn(t, s, draft(), draft())
	c := adminConn(t, s)
	for _, later := range []bool{false, true} {
		if err := c.Begin(); err != nil {
			t.Fatal(err)
		}
		err := c.StartQuery(`SELECT seq FROM jobs WHERE seq > ? ORDER BY seq`, int64(0))
		if err == nil {
			err = c.Exec(`UPDATE jobs SET seq = -seq WHERE seq = 2`)
		}
		if err == nil && later {
			_, err = c.Number(`SELECT seq FROM jobs WHERE seq < 0`)
		}
		var got []int64
		ok := false
		if err == nil {
			ok, err = c.FinishQuery(func(r database.Row) (bool, error) { got = append(got, r.Num(0)); return true, nil })
		}
		n := int64(0)
		if err == nil {
			n, err = c.Number(`SELECT count(*) FROM jobs WHERE seq < 0`)
		}
		if err != nil || ok == later || !later && !slices.Equal(got, []int64{1, 2}) || n != 1 {
			t.Errorf("result of a later query received first: %v; result used: %v, claimed %v, %d changed, %v",
				later, ok, got, n, err)
		}
		c.Rollback()
	}
}
