package termtext

import (
	"strings"
	"unicode"
)

// lineBreaks replaces every sequence that may begin a new line with "\n".
var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n",
	"\u2029", "\n")

// IndentAfterFirstLine indents all lines of a text except the first. So no line of an untrusted text looks like a line
// that queuectl itself has printed.
func IndentAfterFirstLine(text string, indentColumns int) string {
	text = strings.TrimRight(lineBreaks.Replace(text), "\n")
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indentColumns))
}

// OneLine returns a text as one line. It replaces each white-space character by a space.
func OneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text))
}

// LastLines returns the last n lines of a text.
func LastLines(s string, n int) string {
	lines := strings.Split(lineBreaks.Replace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// WrapLines breaks texts into lines of at most width columns, between words if possible.
func WrapLines(width int, texts ...string) (lines []string) {
	for _, text := range texts {
		for DisplayWidth(text) > width && width > 0 {
			end, space, seen := 0, 0, 0
			for end < len(text) {
				_, k, columns := nextDisplayUnit(text[end:])
				if seen += columns; seen > width {
					break
				}
				if text[end] == ' ' {
					space = end
				}
				end += k
			}
			if end < len(text) && text[end] == ' ' {
				space = end
			}
			if space > 0 {
				end = space
			}
			lines = append(lines, strings.TrimRight(text[:end], " "))
			text = strings.TrimLeft(text[end:], " ")
		}
		lines = append(lines, text)
	}
	return lines
}

// TextForLocale returns one of queuectl's own texts in characters that the locale can show. In UTF-8 it returns
// the text unchanged, otherwise in ASCII. Never pass texts of jobs to TextForLocale.
func TextForLocale(text string) string {
	if !isLocaleASCIIOnly() {
		return text
	}
	return strings.NewReplacer("…", "...", "·", "|", "–", "-", "◇", "#", "‖", "=", "○", "o", "↻", "~", "▶", ">", "✓", "+",
		"✗", "x",
		"├─", "|-", "└─", "`-", "│", "|", "█", "#", "░", ".", "▏", "_", "↓", "Down", "↑", "Up").Replace(text)
}
