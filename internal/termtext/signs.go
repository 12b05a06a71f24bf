package termtext

import (
	"strings"
)

// LocaleText returns a text of queuectl's own in the characters that the locale can show. In UTF-8 the
// text is unchanged, otherwise it is ASCII. Never pass texts of jobs to LocaleText.
func LocaleText(text string) string {
	if !asciiOnly() {
		return text
	}
	return strings.NewReplacer("…", "...", "·", "|", "–", "-", "◇", "#", "‖", "=", "○", "o", "↻", "~", "▶", ">", "✓", "+",
		"✗", "x",
		"├─", "|-", "└─", "`-", "│", "|", "█", "#", "░", ".", "▏", "_", "↓", "Down", "↑", "Up").Replace(text)
}
