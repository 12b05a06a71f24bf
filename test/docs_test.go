//go:build linux || windows

package test

import (
	"regexp"
	"strings"
)

// An example is a block of a page that is fenced as console: lines that begin with
// "$ " are typed, the lines below are what is seen, on standard output and standard
// error together; … stands for whatever comes there, within a line, and a line of …
// alone for any lines. Blocks fenced as toml are settings files. A page may hold no
// other kind of block but sh, which names targets of make, cmd and powershell, which are of
// Windows, and text, which is no
// example.
var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// looksLike compares what was seen with what a page says.
func looksLike(got, want string) bool {
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
