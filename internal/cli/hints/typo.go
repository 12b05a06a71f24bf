package hints

import (
	"cmp"
	"fmt"
	"strings"
)

// typoHint returns a hint that names the known word that the user probably meant. It tolerates one
// mistake: a wrong, missing or additional letter, or two swapped letters. In a word of six letters or
// more it tolerates two mistakes. The first letter must be right, because words with another first
// letter usually mean something else. It returns "" if no known word is similar enough.
func typoHint(word string, known []string) string {
	const longest, long = 64, 6 // letters
	typed := strings.TrimLeft(word, "-")
	most := 1
	if len(typed) >= long {
		most = 2
	}
	if typed == "" || len(typed) > longest {
		return ""
	}
	if full := expandAbbreviation(word, known); full != "" {
		return fmt.Sprintf("; did you mean %q?", full)
	}
	best := ""
	for _, k := range known {
		meant := strings.TrimLeft(k, "-")
		if meant == "" || meant[0] != typed[0] {
			continue
		}
		if n := editDistance(typed, meant); n <= most {
			best, most = k, n-1 // from here on, accept only words with fewer mistakes
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// expandAbbreviation returns the known word that begins with the given one. It returns "" if no known word
// does, or if several do.
func expandAbbreviation(word string, known []string) (full string) {
	const shortest = 4 // letters
	if len(strings.TrimLeft(word, "-")) < shortest {
		return ""
	}
	for _, k := range known {
		if strings.HasPrefix(k, word) {
			if full != "" {
				return ""
			}
			full = k
		}
	}
	return full
}

// editDistance counts the mistakes that turn one word into the other (their Damerau-Levenshtein distance).
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			wrong := last[j]
			if a[i] != b[j] {
				wrong++
			}
			row[j+1] = min(wrong, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// SimilarWordHint returns a hint that names the known word most similar to the given one, or else the
// fallback.
func SimilarWordHint(word string, known []string, fallback string) string {
	return cmp.Or(typoHint(word, known), "; "+fallback)
}
