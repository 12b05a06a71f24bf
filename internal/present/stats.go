package present

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
)

func StatsHead(first string) []string {
	return []string{first, "STARTED", "COMPLETED", "FAILED", "DEAD", "FAILURES", "WAIT P50", "WAIT P95", "RUN P50",
		"RUN P95"}
}

// StatsRow formats one row of statistics.
func StatsRow(name string, f *control.Figures) []string {
	row := []string{name, fmt.Sprint(f.Started), fmt.Sprint(f.Completed), fmt.Sprint(f.Failed), fmt.Sprint(f.Dead),
		DashText(Rate(f.FailureRate))}
	for _, ms := range []*int64{f.Wait.P50MS, f.Wait.P95MS, f.Run.P50MS, f.Run.P95MS} {
		row = append(row, DashText(Took(ms)))
	}
	return row
}

// Rate formats a fraction as a percentage. It returns "" if the fraction is unknown.
func Rate(part *float64) string {
	if part == nil {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100**part)
}
