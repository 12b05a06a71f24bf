package cli

import "sort"

// sortList sorts a list in place and stably. The code of slices.SortStableFunc is compiled for each type of value, which
// would make the client kilobytes larger for each; a list of a command line is too short for the difference in speed.
func sortList[T any](list []T, compare func(a, b *T) int) {
	sort.Stable(&sortable{
		length: len(list),
		less:   func(i, j int) bool { return compare(&list[i], &list[j]) < 0 },
		swap:   func(i, j int) { list[i], list[j] = list[j], list[i] },
	})
}

// sortable implements sort.Interface by functions.
type sortable struct {
	length int
	less   func(i, j int) bool
	swap   func(i, j int)
}

func (s *sortable) Len() int           { return s.length }
func (s *sortable) Less(i, j int) bool { return s.less(i, j) }
func (s *sortable) Swap(i, j int)      { s.swap(i, j) }
