package term

import (
	"bufio"
	"fmt"
	"strings"
)

// CanAsk reports whether the user can be asked for confirmation.
func (o *Output) CanAsk() bool { return IsTerminal(o.Stdin) && IsTerminal(o.Stderr) && !o.Structured() }

// AskYesNo asks the user a question. Every answer except yes means no.
func (o *Output) AskYesNo(format string, args ...any) bool {
	fmt.Fprintf(o.Stderr, format+" [y/N] ", args...)
	line, _ := bufio.NewReader(o.Stdin).ReadString('\n') // if reading fails, the answer is no
	word := strings.ToLower(strings.TrimSpace(line))
	return word == "y" || word == "yes"
}
