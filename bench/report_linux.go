package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// report collects the rows of the printed table.
type report struct {
	rows          []row
	missedTargets int
}

// row is a row of the table: a result of queuectl and, for comparison, a limit of the machine or a result of
// another program.
type row struct {
	measurement string
	queuectl    string
	baseline    string // name and value of the result with which queuectl is compared
	ratio       string
	target      string
	verdict     string
}

// add adds a row that has no target.
func (r *report) add(measurement, queuectl, baseline, ratio string) {
	r.rows = append(r.rows, row{measurement: measurement, queuectl: queuectl, baseline: baseline, ratio: ratio})
}

// judge adds a row with a target, and with the verdict whether the target was met.
func (r *report) judge(w row, isMet bool) {
	w.verdict = "ok"
	if !isMet {
		w.verdict = "**MISS**"
		r.missedTargets++
	}
	r.rows = append(r.rows, w)
}

func (r *report) print(w io.Writer) {
	fmt.Fprint(w, "| measurement | queuectl | baseline | ratio | target | |\n|---|---|---|---|---|---|\n")
	for _, l := range r.rows {
		fmt.Fprintf(w, "| %s |\n",
			strings.Join([]string{l.measurement, l.queuectl, l.baseline, l.ratio, l.target, l.verdict}, " | "))
	}
	fmt.Fprintf(w, "\n%d targets missed.\n", r.missedTargets)
}

// median returns the median of v.
func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile returns the q-quantile of v.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	if q == 0.5 && len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// ratios divides each result in a by the result in b with the same index. The two were measured one directly
// after the other, so other load on the machine affects both equally.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

// formatMicros and formatMillis format seconds, and formatRate formats a number per second.
func formatMicros(s float64) string { return fmt.Sprintf("%.0f µs", s*1e6) }
func formatMillis(s float64) string { return fmt.Sprintf("%.2f ms", s*1e3) }
func formatRate(n float64) string   { return fmt.Sprintf("%.0f/s", n) }
func formatRatio(x float64) string  { return fmt.Sprintf("%.2f", x) }
