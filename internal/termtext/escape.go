package termtext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TerminalSafeText returns an untrusted text as one line without colours. The line cannot control a terminal, and takes
// exactly as many columns as DisplayWidth counts.
func TerminalSafeText(s string) string { return OneLine(escapeCellText(RemoveColours(s))) }

// escapeCellText escapes the characters of a text that control a terminal. It also removes joiners, so that the text
// takes as many columns as DisplayWidth counts. The caller must have removed colours.
func escapeCellText(s string) string {
	return RemoveJoiners(EscapeInvisibleCharacters(EscapeControlCharacters(s)))
}

// tabStopColumns is the number of columns between tab stops in a job's output.
const tabStopColumns = 8

// TerminalSafeOutputLine prepares a line of output like TerminalSafeText, but keeps its spaces. If carriage returns
// overwrite text, only the last version remains.
func TerminalSafeOutputLine(s string) string {
	s = strings.TrimRight(s, "\r\n")
	s = RemoveColours(s[strings.LastIndexByte(s, '\r')+1:])
	var b strings.Builder
	for part := range strings.SplitAfterSeq(s, "\t") {
		text, tab := strings.CutSuffix(part, "\t")
		b.WriteString(escapeCellText(strings.ReplaceAll(text, "\n", " ")))
		if tab {
			b.WriteString(strings.Repeat(" ", tabStopColumns-DisplayWidth(b.String())%tabStopColumns))
		}
	}
	return b.String()
}

// RemoveColours returns a text without its colour sequences.
func RemoveColours(s string) string {
	if !strings.Contains(s, "\x1b") {
		return s
	}
	var b strings.Builder
	whole := len(s) - TrailingPartialSequenceBytes(s)
	for i := 0; i < whole; {
		n := LeadingColourSequenceBytes(s[i:])
		if n == 0 {
			n = 1
			b.WriteByte(s[i])
		}
		i += n
	}
	return b.String()
}

// ResetColours is the sequence that resets all colours.
const ResetColours = "\x1b[0m"

// EscapeControlCharacters escapes the bidirectional controls and all control characters. It keeps tabs, newlines and
// colours.
func EscapeControlCharacters(s string) string { return EscapeControlCharactersExcept(s, "\n\t", true) }

// EscapeControlCharactersExcept replaces control characters by readable escape sequences. It keeps the characters in
// allowedChars and, if keepColours is true, the sequences that LeadingColourSequenceBytes recognises.
func EscapeControlCharactersExcept(s, allowedChars string, keepColours bool) string {
	// keepByte says which ASCII bytes are kept. A table is fast, and jobs print mostly ASCII.
	var keepByte [256]bool
	for c := ' '; c <= '~'; c++ {
		keepByte[c] = true
	}
	for i := range len(allowedChars) {
		keepByte[allowedChars[i]] = true
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		shown := i
		for i < len(s) && keepByte[s[i]] {
			i++
		}
		b.WriteString(s[shown:i])
		if i == len(s) {
			break
		}
		if n := LeadingColourSequenceBytes(s[i:]); n > 0 && keepColours {
			b.WriteString(s[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsControl(r) && r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.Is(unicode.Bidi_Control, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

// TrailingPartialSequenceBytes returns the number of bytes at the end of a text that may be the beginning of a
// character or colour sequence. The next piece of output may contain the rest.
func TrailingPartialSequenceBytes(s string) int {
	end := s[max(0, len(s)-31):]
	if at := strings.LastIndexByte(end, 0x1b); at >= 0 {
		if rest := end[at+1:]; rest == "" || rest[0] == '[' && strings.Trim(rest[1:], "0123456789;") == "" {
			return len(end) - at
		}
	}
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if b := s[len(s)-n]; utf8.RuneStart(b) {
			if !utf8.FullRuneInString(s[len(s)-n:]) {
				return n
			}
			break
		}
	}
	return 0
}
