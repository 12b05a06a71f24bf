package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// prints ends an attempt of a leased job with an output of n bytes, and reads the job back.
func (r *rig) prints(j queue.Job, o queue.Outcome, n int, most int64) queue.Job {
	r.Helper()
	e := r.settlement(j, o)
	e.Attempt.Output = make([]byte, n)
	same(r, "stale leases", r.turn(store.Report{Ended: []store.Settlement{e}}).Stale, nil)
	r.advance(time.Second)
	return r.get(j.ID)
}

// attempt stores a job if there is none to run, runs it once and fails it with an output of n bytes.
func (r *rig) attempt(j queue.Job, n int, most int64) queue.Job {
	r.Helper()
	got := r.prints(j, exit(1), n, most)
	r.in("a job that is to be retried", got, queue.Failed, "")
	return got
}

// again claims the job that failed, once it is due.
func (r *rig) again() queue.Job {
	r.Helper()
	r.advance(time.Hour)
	r.promote()
	return r.claimOne()
}

// sizes returns the output sizes of the first attempts of a job.
func (r *rig) sizes(j queue.Job, attempts int) (list []int64) {
	r.Helper()
	for n := range attempts {
		a, err := r.s.Attempt(r.Context(), j.Seq, n+1)
		r.must(err)
		list = append(list, a.OutputBytes)
	}
	return list
}

func outputsOfRetriedTrimmed(r *rig) {
	old := r.prints(r.claimOf(1, maxAttempts(9)), exit(0), 500, 0)
	j := r.claimOf(1, maxAttempts(9))
	for range 3 {
		r.attempt(j, 1000, 0)
		j = r.again()
	}
	before := r.held(1)
	same(r, "removable bytes", r.removable(1), int64(3500))
	r.trimUser(1, before-1500)
	same(r, "after trimming", r.held(1), before-2000)
	same(r, "outputs of the running job", r.sizes(j, 3), []int64{queue.OutputOverQuota, queue.OutputOverQuota, 1000})
	same(r, "output of the ended job", r.sizes(old, 1), []int64{500})
	j = r.prints(j, exit(0), 10, 0)
	same(r, "bytes of outputs once it has ended", j.Outputs, int64(1010))
	r.trimUser(1, 0)
	same(r, "removable at last", r.removable(1), int64(0))
	same(r, "bytes of outputs at last", r.get(j.ID).Outputs, int64(0))
}

// claimOf stores a job of a user and claims it.
func (r *rig) claimOf(uid int, set ...func(*queue.Job)) queue.Job {
	r.Helper()
	r.must(r.enqueueLarge(uid, 0, draft(append(set, of(uid))...)))
	return r.claimOne()
}

func outputsOfMostTrimmed(r *rig) {
	run := func(uid, n int) queue.Job { return r.prints(r.claimOf(uid), exit(0), n, 0) }
	first := run(1, 100)
	var most []queue.Job
	for range 120 { // more than two steps
		most = append(most, run(2, 100))
	}
	second := run(3, 3000)
	left := func(keep int64) (n [3]int64) {
		r.Helper()
		for more := true; more; {
			var err error
			more, err = r.s.TrimOutputs(r.Context(), keep)
			r.must(err)
		}
		for _, j := range most {
			n[1] += r.get(j.ID).Outputs
		}
		n[0], n[2] = r.get(first.ID).Outputs, r.get(second.ID).Outputs
		return n
	}
	same(r, "where all fit", left(15_100), [3]int64{100, 12_000, 3000})
	same(r, "the user with most gives", left(10_050), [3]int64{100, 6900, 3000})
	same(r, "the oldest went", r.sizes(most[50], 1), []int64{queue.OutputForgotten})
	same(r, "down to the next user", left(6000), [3]int64{100, 2900, 3000})
	same(r, "then that one gives", left(5999), [3]int64{100, 2900, 0})
	same(r, "users with least are last", left(200), [3]int64{100, 100, 0})
}
