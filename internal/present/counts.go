package present

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CountsText describes how many jobs are in each of these states. It omits states without jobs.
func CountsText(all int, count func(state string) int64, states ...string) string {
	var parts []string
	for _, state := range states {
		if n := count(state); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(parts) == 0 {
		return Jobs(all)
	}
	return Jobs(all) + ": " + strings.Join(parts, ", ")
}

// Notes joins the texts next to a progress bar. It omits empty texts.
func Notes(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(n string) bool { return n == "" }), ", ")
}

// Count returns a text like "3 dead", or "" if n is 0.
func Count(n int64, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Plain formats a number without separators.
func Plain(n int64) string { return strconv.FormatInt(n, 10) }

// Plural formats a number with its noun, like "1 argument" or "2 arguments".
func Plural(n int, what string) string { return PluralOf(int64(n), what, Plain) }

// PluralOf is like Plural, but the function in the parameter number formats the number.
func PluralOf(n int64, what string, number func(int64) string) string {
	if n != 1 {
		what += "s"
	}
	return number(n) + " " + what
}

func Size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n < 1<<10:
		return Plural(int(n), "byte")
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

// Used formats how many bytes are used and how many may be used. If the parameter most is 0, the
// bytes are unlimited.
func Used(n, most int64) string {
	if most == 0 {
		return Size(n) + " used"
	}
	return Size(n) + " of " + Size(most) + " used"
}

// UpToAttempts describes the maximum number of attempts of new jobs. It returns "" if the maximum is
// one.
func UpToAttempts(most int) string {
	if most < 2 {
		return ""
	}
	return fmt.Sprintf("; up to %d attempts", most)
}

// Jobs formats a number of jobs.
func Jobs(n int) string {
	return Plural(n, "job")
}

// Workers formats a number of workers, like "2 workers".
func Workers(n int) string { return Plural(n, "worker") }

// NoWorkers is the text for an empty list of workers.
const NoWorkers = "no workers; add some with: queuectl worker start -c N"
