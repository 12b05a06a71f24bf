package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
)

// If the last attempt of a completed job has no output and no error, it is stored in the job's row. The store
// returns it like any other attempt. When the job runs again, the attempt gets its own row.
func TestAttemptWithoutOutputIsStoredInJobRow(t *testing.T) {
	s := openStore(t, t.TempDir())
	seq := enqueue(t, s, 1).Seqs[0]
	attempt := queue.Attempt{Worker: "1/2", Node: "a machine", PID: 77, StartedAt: s.clock(), EndedAt: s.clock() + 5,
		CountsTowardMaxAttempts: true, CPUTime: 1500 * time.Microsecond, PeakRSSBytes: 1 << 20}
	run := func(with queue.Attempt) (as queue.Attempt) {
		t.Helper()
		g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
		if err != nil || len(g.ClaimedJobs) != 1 {
			t.Fatal(len(g.ClaimedJobs), err)
		}
		with.Fence = g.ClaimedJobs[0].Fence
		_, err = s.ReportAndClaim(t.Context(),
			store.LeaseReport{Settlements: []store.Settlement{{Lease: g.ClaimedJobs[0].Lease(), Attempt: with,
				Decision: queue.AttemptDecision{NextState: queue.Completed, RecordsAttempt: true, CountsTowardMaxAttempts: true}}}})
		if err != nil {
			t.Fatal(err)
		}
		return with
	}
	check := func(rows int64, want ...queue.Attempt) {
		t.Helper()
		if n := queryNumber(t, s, `SELECT count(*) FROM attempts`); n != rows {
			t.Errorf("%d attempts have rows, want %d", n, rows)
		}
		list, err := s.AttemptHistory(t.Context(), seq, 0, 9)
		if err != nil || len(list) != len(want) {
			t.Fatalf("%d attempts, %v; want %d", len(list), err, len(want))
		}
		for i := range want {
			want[i].Number, want[i].OutputBytes = i+1, int64(len(want[i].Output))
			got, err := s.Attempt(t.Context(), seq, i+1)
			if err != nil || string(got.Output) != string(want[i].Output) {
				t.Errorf("the output of attempt %d is %q, %v", i+1, got.Output, err)
			}
			for _, got := range []queue.Attempt{got, list[i]} {
				got.Output, want[i].Output = nil, nil
				if !equalAttempts(got, want[i]) {
					t.Errorf("attempt %d is %+v, want %+v", i+1, got, want[i])
				}
			}
		}
		if last, err := s.Attempt(t.Context(), seq, 0); err != nil || last.Number != len(want) {
			t.Errorf("the last attempt is number %d, %v", last.Number, err)
		}
		if page, err := s.AttemptHistory(t.Context(), seq, len(want), 9); err != nil || len(page) != len(want)-1 {
			t.Errorf("%d attempts precede the last one, %v", len(page), err)
		}
		if page, err := s.AttemptHistory(t.Context(), seq, 0, 1); err != nil || len(page) != 1 ||
			page[0].Number != len(want) {
			t.Errorf("the newest attempt is %+v, %v", page, err)
		}
		if faults, err := integrity.FindContradictingRows(s.writerConn); err != nil || len(faults) > 0 {
			t.Errorf("faults: %q, %v", faults, err)
		}
	}
	again := func() {
		t.Helper()
		err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
			j, err := t.Job(seq, 0)
			if err == nil {
				t.rules.MoveToState(&j, queue.Pending, "", nil)
				err = t.rules.Err()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	first := run(attempt)
	check(0, first)
	again()
	check(1, first)
	loud := attempt
	loud.Output = []byte("said")
	second := run(loud)
	check(2, first, second)
	again()
	third := run(attempt)
	check(2, first, second, third)
	damageRow(t, s, `UPDATE jobs SET ran = '1/2 77' WHERE seq = ?`, seq)
	if last, err := s.Attempt(t.Context(), seq, 0); err != nil || last.PID != 77 || last.EndedAt != third.EndedAt ||
		last.PeakRSSBytes != 0 {
		t.Errorf("the attempt that is damaged in part is read as %+v, %v", last, err)
	}
	if faults, err := integrity.FindContradictingRows(s.writerConn); err != nil || len(faults) != 1 ||
		!strings.Contains(faults[0], "cannot be read") {
		t.Errorf("faults: %q, %v", faults, err)
	}
	again() // the job can run again despite the damage
}

func equalAttempts(a, b queue.Attempt) bool {
	return a.Number == b.Number && a.Fence == b.Fence && a.Worker == b.Worker && a.Node == b.Node && a.PID == b.PID &&
		a.StartedAt == b.StartedAt && a.EndedAt == b.EndedAt &&
		a.ExitCode == b.ExitCode && a.CountsTowardMaxAttempts == b.CountsTowardMaxAttempts && a.CPUTime == b.CPUTime &&
		a.PeakRSSBytes == b.PeakRSSBytes &&
		a.OutputBytes == b.OutputBytes
}
