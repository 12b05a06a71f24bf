package present

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// JobCountsText returns a text with the total number of jobs, and the number of jobs in each of the given states. It
// omits states without jobs.
func JobCountsText(totalJobs int, countInState func(state string) int64, states ...string) string {
	var parts []string
	for _, state := range states {
		parts = append(parts, CountWithLabel(countInState(state), state))
	}
	return strings.TrimSuffix(JobCountText(totalJobs)+": "+JoinNonEmptyTexts(parts...), ": ")
}

// JoinNonEmptyTexts joins the texts that are not empty with commas.
func JoinNonEmptyTexts(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(n string) bool { return n == "" }), ", ")
}

// CountWithLabel returns a text like "3 dead", or "" if n is 0.
func CountWithLabel(n int64, label string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, label)
}

// PlainNumberText formats a number without separators.
func PlainNumberText(n int64) string { return strconv.FormatInt(n, 10) }

// Plural formats a number with its noun, like "1 argument" or "2 arguments".
func Plural(n int, noun string) string { return PluralWithFormat(int64(n), noun, PlainNumberText) }

// PluralWithFormat is like Plural, but formats the number with formatNumber.
func PluralWithFormat(n int64, noun string, formatNumber func(int64) string) string {
	if n != 1 {
		noun += "s"
	}
	return formatNumber(n) + " " + noun
}

// SizeText formats a number of bytes, like "1.5 MiB".
func SizeText(byteCount int64) string {
	switch size := float64(byteCount); {
	case size >= 1<<30:
		return fmt.Sprintf("%.1f GiB", size/(1<<30))
	case size >= 1<<20:
		return fmt.Sprintf("%.1f MiB", size/(1<<20))
	case size >= 1<<10:
		return fmt.Sprintf("%.1f KiB", size/(1<<10))
	}
	return Plural(int(byteCount), "byte")
}

// ByteUsageText says how many bytes are used, and how many may be used at most. If limitBytes is 0, usage has no limit.
func ByteUsageText(usedBytes, limitBytes int64) string {
	if limitBytes == 0 {
		return SizeText(usedBytes) + " used"
	}
	return SizeText(usedBytes) + " of " + SizeText(limitBytes) + " used"
}

// MaxAttemptsText describes the maximum number of attempts of new jobs. It returns "" if jobs have only one attempt.
func MaxAttemptsText(maxAttempts int) string {
	if maxAttempts < 2 {
		return ""
	}
	return fmt.Sprintf("; up to %d attempts", maxAttempts)
}

// JobCountText formats a number of jobs.
func JobCountText(n int) string {
	return Plural(n, "job")
}

// WorkerCountText formats a number of workers, like "2 workers".
func WorkerCountText(n int) string { return Plural(n, "worker") }

// NoWorkersText is the text for an empty list of workers.
const NoWorkersText = "no workers; add some with: queuectl worker start -c N"
