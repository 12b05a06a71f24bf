package cli

import "strings"

// Sign returns a text of ours in the characters that the locale has: as it is in UTF-8, else in ASCII. Texts of jobs
// never pass through it.
func Sign(text string) string {
	if !asciiOnly() {
		return text
	}
	return strings.NewReplacer("…", "...", "·", "|", "–", "-", "◇", "#", "‖", "=", "○", "o", "↻", "~", "▶", ">", "✓", "+", "✗", "x",
		"├─", "|-", "└─", "`-", "│", "|", "█", "#", "░", ".", "▏", "_", "↓", "Down", "↑", "Up").Replace(text)
}
