package hints

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// SimilarWordHint returns a hint that names the known word that the user probably meant, or else the
// fallback. It accepts an abbreviation of four letters or more, and otherwise tolerates the mistakes that
// queue.NearestWord tolerates. The first letter must be right, because words with another first letter
// usually mean something else.
func SimilarWordHint(word string, known []string, fallback string) string {
	const shortest = 4 // letters of an abbreviation
	typed := strings.TrimLeft(word, "-")
	var candidates, full []string // without dashes, which all known words have or none
	dashes := ""
	for _, k := range known {
		if meant := strings.TrimLeft(k, "-"); typed != "" && meant != "" && meant[0] == typed[0] {
			candidates, dashes = append(candidates, meant), strings.TrimSuffix(k, meant)
			if len(typed) >= shortest && strings.HasPrefix(meant, typed) {
				full = append(full, meant)
			}
		}
	}
	best := queue.NearestWord(typed, candidates)
	if len(full) == 1 {
		best = full[0]
	}
	if best == "" {
		return "; " + fallback
	}
	return fmt.Sprintf("; did you mean %q?", dashes+best)
}
