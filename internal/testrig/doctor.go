//go:build linux || windows

package testrig

import (
	"encoding/json"
	"strings"
)

// diagnosis holds the findings of doctor.
type diagnosis struct {
	Level    string
	Findings []struct{ Check, Level, Message, Next string }
}

func (q *Queue) Doctor(args ...string) diagnosis {
	q.Helper()
	r := q.Cli(append([]string{"doctor", "--json"}, args...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.Out), &d); err != nil {
		q.Fatalf("doctor: %+v, %v", r, err)
	}
	if want := map[string]int{"failure": 1}[d.Level]; r.Code != want {
		q.Errorf("doctor found %s and ended with %d", d.Level, r.Code)
	}
	return d
}

// CheckFinding checks that doctor reports a failure for the given check, with the given text in its message
// or advice.
func (q *Queue) CheckFinding(planted, check, wantText string, args ...string) {
	q.Helper()
	d := q.Doctor(args...)
	for _, f := range d.Findings {
		if f.Level == "failure" && f.Check == check && strings.Contains(f.Message+" "+f.Next, wantText) {
			return
		}
	}
	q.Errorf("%s: doctor did not find it: %+v", planted, d)
}

// CheckHealthy checks that doctor reports no failure.
func (q *Queue) CheckHealthy(when string) {
	q.Helper()
	if d := q.Doctor("--verify"); d.Level == "failure" {
		q.Errorf("%s: %+v", when, d)
	}
}
