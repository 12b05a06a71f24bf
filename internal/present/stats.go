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
func StatsRow(rowName string, statistics *control.AttemptStatistics) []string {
	row := []string{rowName, fmt.Sprint(statistics.Started), fmt.Sprint(statistics.Completed),
		fmt.Sprint(statistics.Failed), fmt.Sprint(statistics.Dead), DashIfEmpty(PercentageText(statistics.FailureRate))}
	for _, ms := range []*int64{statistics.WaitTimes.P50MS, statistics.WaitTimes.P95MS, statistics.RunTimes.P50MS,
		statistics.RunTimes.P95MS} {
		row = append(row, DashIfEmpty(DurationText(ms)))
	}
	return row
}

// PercentageText formats a fraction as a percentage. It returns "" if the fraction is unknown.
func PercentageText(fraction *float64) string {
	return formatIfNotNil(fraction, func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) })
}
