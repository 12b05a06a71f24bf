//go:build linux || windows

package testrig

import (
	"regexp"
	"strings"
)

// FencedBlock matches a fenced block of a documentation page. A block fenced as "console" is an
// example. Its lines that begin with "$ " are commands. The lines below a command are the command's
// standard output and standard error together. The character … matches any text within a line, and a
// line that contains only … matches any lines. Blocks fenced as "toml" are settings files, and blocks
// fenced as "sh" name make targets. Blocks fenced as "cmd" and "powershell" are for Windows, and blocks
// fenced as "text" are not examples. No other kind is allowed.
var FencedBlock = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// MatchesOutput reports whether the output of a command matches the output on a page.
func MatchesOutput(got, want string) bool {
	var pattern strings.Builder
	pattern.WriteString(`(?s)^\s*`)
	for line := range strings.Lines(strings.TrimSpace(want) + "\n") {
		line = strings.TrimRight(line, " \n")
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		for i, text := range strings.Split(line, "…") {
			if i > 0 {
				pattern.WriteString(`[^\n]*?`)
			}
			pattern.WriteString(regexp.QuoteMeta(text))
		}
		pattern.WriteString(`[ ]*\n`)
	}
	pattern.WriteString(`\s*$`)
	matched, err := regexp.MatchString(pattern.String(), strings.TrimSpace(got)+"\n")
	return err == nil && (matched || strings.TrimSpace(got) == strings.TrimSpace(want))
}
