//go:build linux || windows

package testrig

import (
	"regexp"
	"strings"
)

// FencedCodeBlockPattern matches a fenced code block of a documentation page. The word after the fence is the kind of
// the block:
//
//   - "console" is an example. Lines that begin with "$ " are commands. The lines below a command are its stdout and
//     stderr together. In them, the character … matches any text within a line, and a line that contains only …
//     matches any number of lines.
//   - "toml" is a settings file.
//   - "sh" calls a make target in each line.
//   - "json" is valid JSON.
//   - "cmd" and "powershell" are for Windows.
//   - "text" is not an example.
//
// No other kind is allowed.
var FencedCodeBlockPattern = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// MatchesOutput reports whether the output of a command matches the output that a page shows. In want, the
// character … has the meaning described at FencedCodeBlockPattern.
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
