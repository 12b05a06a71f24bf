package term

import (
	"os"

	xterm "golang.org/x/term"

	"github.com/queuectl/queuectl/internal/termtext"
)

// Columns returns how many columns a line may fill. It returns 0, which means no limit, if to is not
// a terminal.
func Columns(to *os.File) int {
	if !IsTerminal(to) {
		return 0
	}
	if w, _, err := xterm.GetSize(int(to.Fd())); err == nil && w > 0 {
		return min(max(w, termtext.LeastWidth), mostWidth)
	}
	return 80
}

// These constants bound the size that a terminal reports, because memory use grows with that size.
const (
	mostWidth  = 1000
	mostHeight = 500
)

// Lines returns the number of lines of a terminal, or 0 if to is not a terminal.
func Lines(to *os.File) int {
	if !IsTerminal(to) {
		return 0
	}
	if _, h, err := xterm.GetSize(int(to.Fd())); err == nil && h > 0 {
		return min(h, mostHeight)
	}
	return 24
}
