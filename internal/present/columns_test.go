package present

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// A list is sorted by the value of a column, not by its text: numbers by size, and times from early to late.
// Jobs without a value come first.
func TestColumnsSortByValue(t *testing.T) {
	jobs := []control.Job{
		{ID: "a", Seq: 10, StartedAt: 20, RunTimeMS: new(int64(90_000)), Progress: &control.JobProgress{Percent: 9}},
		{ID: "b", Seq: 9, StartedAt: 100, RunTimeMS: new(int64(1_200)), Progress: &control.JobProgress{Percent: 10}},
		{ID: "c", Seq: 100},
	}
	for name, want := range map[string]string{
		"id": "abc", "seq": "bac", "started": "cab", "ran": "cba", "progress": "cab",
	} {
		columns := JobColumns()
		i := slices.IndexFunc(columns, func(c JobColumn) bool { return c.Name == name })
		if i < 0 {
			t.Fatalf("there is no column %s", name)
		}
		sorted := slices.Clone(jobs)
		slices.SortFunc(sorted, func(a, b control.Job) int {
			return CompareCells(columns[i].CellOf(&a), columns[i].CellOf(&b))
		})
		got := ""
		for _, j := range sorted {
			got += j.ID
		}
		if got != want {
			t.Errorf("sorted by %s: %s, want %s", name, got, want)
		}
	}
}

// Each state has a different sign, so the sign in a cell identifies the state.
func TestEachStateHasADifferentSign(t *testing.T) {
	for _, state := range []string{"blocked", "held", "pending", "failed", "processing", "completed", "dead",
		"cancelled"} {
		sign := SignOfState(state)
		if sign.Symbol == "" || LeadingStateSign(sign.Symbol+" 17") != sign {
			t.Errorf("%s: the sign %+v is found as %+v", state, sign, LeadingStateSign(sign.Symbol+" 17"))
		}
	}
	if got := LeadingStateSign("17"); got.Symbol != "" {
		t.Errorf("a cell without a sign: got %+v", got)
	}
}
