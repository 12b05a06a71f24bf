//go:build linux || windows

package testrig

import (
	"regexp"
	"strings"
)

// FencedBlockPattern matches a fenced code block of a documentation page. The word after the fence is the kind of the
// block. A "console" block is an example: lines that begin with "$ " are commands, and the lines below a
// command are its stdout and stderr together. In this output, the character … matches any text within a line,
// and a line that contains only … matches any number of lines. A "toml" block is a settings file, each line
// of a "sh" block calls a make target, and a "json" block is valid JSON. The kinds "cmd" and "powershell" are for
// Windows, and "text" is not an example. No other kind is allowed.
var FencedBlockPattern = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// MatchesOutput reports whether the output of a command matches the output that a page shows. In want, the
// character … has the meaning described at FencedBlockPattern.
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
