package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// resultTable collects the rows of the printed table.
type resultTable struct {
	rows              []row
	missedTargetCount int
}

// row is a row of the table. It contains a result of queuectl and, for comparison, a baseline: a limit of the machine
// or a result of another program.
type row struct {
	measurement     string
	queuectlResult  string
	baselineResult  string // name and value of the baseline
	ratioToBaseline string
	target          string
	verdict         string
}

// addRow adds a row that has no target.
func (r *resultTable) addRow(measurement, queuectlResult, baselineResult, ratioToBaseline string) {
	r.rows = append(r.rows, row{measurement: measurement, queuectlResult: queuectlResult, baselineResult: baselineResult,
		ratioToBaseline: ratioToBaseline})
}

// addRowWithVerdict adds a row with a target, and with the verdict whether the target was met.
func (r *resultTable) addRowWithVerdict(resultRow row, targetIsMet bool) {
	resultRow.verdict = "ok"
	if !targetIsMet {
		resultRow.verdict = "**MISS**"
		r.missedTargetCount++
	}
	r.rows = append(r.rows, resultRow)
}

func (r *resultTable) print(w io.Writer) {
	fmt.Fprint(w, "| measurement | queuectl | baseline | ratio | target | |\n|---|---|---|---|---|---|\n")
	for _, l := range r.rows {
		fmt.Fprintf(w, "| %s |\n",
			strings.Join([]string{l.measurement, l.queuectlResult, l.baselineResult, l.ratioToBaseline, l.target, l.verdict},
				" | "))
	}
	fmt.Fprintf(w, "\n%d targets missed.\n", r.missedTargetCount)
}

// median returns the median of v.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the quantile of v for the given fraction; 0.5 is the median.
func quantile(values []float64, fraction float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if fraction == 0.5 && len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[min(len(s)-1, int(fraction*float64(len(s))))]
}

// pairwiseRatios divides each numerator by the denominator with the same index. Each pair was measured one directly
// after the other, so other load on the machine affects both equally.
func pairwiseRatios(numerators, denominators []float64) []float64 {
	out := make([]float64, min(len(numerators), len(denominators)))
	for i := range out {
		out[i] = numerators[i] / denominators[i]
	}
	return out
}

// formatMicros and formatMillis format seconds, and formatRate formats a number per second.
func formatMicros(seconds float64) string { return fmt.Sprintf("%.0f µs", seconds*1e6) }
func formatMillis(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1e3) }
func formatRate(perSecond float64) string { return fmt.Sprintf("%.0f/s", perSecond) }
func formatRatio(ratio float64) string    { return fmt.Sprintf("%.2f", ratio) }
