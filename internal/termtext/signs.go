package termtext

import (
	"strings"
)

// LocaleText returns a text of queuectl's own with the characters that the locale can show: unchanged in
// UTF-8, otherwise in ASCII. Texts of jobs never pass through it.
func LocaleText(text string) string {
	if !asciiOnly() {
		return text
	}
	return strings.NewReplacer("…", "...", "·", "|", "–", "-", "◇", "#", "‖", "=", "○", "o", "↻", "~", "▶", ">", "✓", "+",
		"✗", "x",
		"├─", "|-", "└─", "`-", "│", "|", "█", "#", "░", ".", "▏", "_", "↓", "Down", "↑", "Up").Replace(text)
}
