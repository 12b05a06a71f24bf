package cli

import (
	"sort"
)

// sortList sorts a list in place and stably. It avoids slices.SortStableFunc, which is compiled
// again for each element type and would add kilobytes to queuectl each time. The lists of a command
// line are too short for its speed to matter.
func sortList[T any](list []T, compare func(a, b *T) int) {
	sort.Stable(&sortable{
		length: len(list),
		less:   func(i, j int) bool { return compare(&list[i], &list[j]) < 0 },
		swap:   func(i, j int) { list[i], list[j] = list[j], list[i] },
	})
}

// sortable implements sort.Interface with functions.
type sortable struct {
	length int
	less   func(i, j int) bool
	swap   func(i, j int)
}

func (s *sortable) Len() int { return s.length }

func (s *sortable) Less(i, j int) bool { return s.less(i, j) }

func (s *sortable) Swap(i, j int) { s.swap(i, j) }
