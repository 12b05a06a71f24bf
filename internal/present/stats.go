package present

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
)

// StatsHeadings returns the headings of a table of statistics whose first column has the given heading.
func StatsHeadings(firstHeading string) []string {
	return []string{firstHeading, "STARTED", "COMPLETED", "FAILED", "DEAD", "FAILURES", "WAIT P50", "WAIT P95", "RUN P50",
		"RUN P95"}
}

// StatsRow formats one row of statistics.
func StatsRow(name string, f *control.AttemptStatistics) []string {
	row := []string{name, fmt.Sprint(f.Started), fmt.Sprint(f.Completed), fmt.Sprint(f.Failed), fmt.Sprint(f.Dead),
		DashIfEmpty(PercentageText(f.FailureRate))}
	for _, ms := range []*int64{f.WaitTimes.P50MS, f.WaitTimes.P95MS, f.RunTimes.P50MS, f.RunTimes.P95MS} {
		row = append(row, DashIfEmpty(DurationText(ms)))
	}
	return row
}

// PercentageText formats a fraction as a percentage. It returns "" if the fraction is unknown.
func PercentageText(fraction *float64) string {
	return formatIfKnown(fraction, func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) })
}
