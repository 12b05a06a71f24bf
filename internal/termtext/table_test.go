package termtext

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// For any widths, a table fits the terminal, and keeps the first and the last column. A table that fits anyway
// is not changed.
func TestTablesFitTerminalWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		widths := rapid.SliceOfN(rapid.IntRange(1, 200), 1, 30).Draw(t, "widths")
		limit := rapid.IntRange(MinTableWidth, 300).Draw(t, "limit")
		chosen := rapid.Bool().Draw(t, "chosen")
		got := FitColumnWidths(widths, limit, chosen)
		used, whole := -columnGap, -columnGap
		for i, n := range got {
			whole += widths[i] + columnGap
			if n > 0 {
				used += n + columnGap
			}
			if n > widths[i] || n < 0 {
				t.Fatalf("column %d is %d wide of %d: %v", i, n, widths[i], got)
			}
		}
		if used > limit || got[0] == 0 || got[len(got)-1] == 0 {
			t.Fatalf("%v takes %d of %d: %v", widths, used, limit, got)
		}
		if whole <= limit && !slices.Equal(got, widths) {
			t.Fatalf("%v would fit %d: %v", widths, limit, got)
		}
	})
	for _, c := range []struct {
		widths []int
		limit  int
		chosen bool
		want   []int
	}{
		// These are the columns of "queuectl list".
		{[]int{2, 10, 8, 8, 19, 100}, 80, false, []int{2, 10, 8, 8, 19, 23}},
		{[]int{2, 10, 8, 8, 19, 100}, 40, false, []int{2, 10, 8, 0, 0, 14}},
		// These are the columns of "queuectl dlq list".
		{[]int{2, 9, 19, 100, 100}, 80, false, []int{2, 9, 19, 21, 21}},
		{[]int{2, 9, 19, 100, 100}, 40, false, []int{2, 9, 0, 12, 11}},
		{[]int{2, 9, 19, 100, 100}, 40, true, []int{2, 8, 8, 7, 7}},
		{[]int{100, 5}, 20, false, []int{13, 5}},
	} {
		if got := FitColumnWidths(c.widths, c.limit, c.chosen); !slices.Equal(got, c.want) {
			t.Errorf("%v in %d: got %v, want %v", c.widths, c.limit, got, c.want)
		}
	}
}
