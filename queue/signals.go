package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// signalNames lists the signals of Linux by number, as in signal(7) for x86 and ARM.
var signalNames = [...]string{
	1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
	"STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
	"PWR", "SYS",
}

// These are the lowest and the highest number of real-time signals that programs can use, as in glibc.
const (
	firstRealTimeSignal = 34
	lastSignal          = 64
)

// SignalName returns a signal's name, such as SIGUSR1, or "signal N" if the signal has no name.
func SignalName(n int) string {
	switch {
	case n > 0 && n < len(signalNames):
		return "SIG" + signalNames[n]
	case n == firstRealTimeSignal:
		return "SIGRTMIN"
	case n > firstRealTimeSignal && n <= lastSignal:
		return "SIGRTMIN+" + strconv.Itoa(n-firstRealTimeSignal)
	}
	return fmt.Sprintf("signal %d", n)
}

// SignalText returns a signal's number and name for a message, such as "signal 9 (SIGKILL)".
func SignalText(n int) string {
	name := SignalName(n)
	if !strings.HasPrefix(name, "SIG") {
		return name
	}
	return fmt.Sprintf("signal %d (%s)", n, name)
}

// SignalPattern returns the JSON Schema regular expression for the texts that ParseSignal accepts.
func SignalPattern() string {
	var names strings.Builder
	for _, c := range "(" + strings.Join(signalNames[1:], "|") + ")" {
		if unicode.IsUpper(c) {
			names.WriteString("[" + string(c) + string(unicode.ToLower(c)) + "]")
		} else {
			names.WriteRune(c)
		}
	}
	return "^(0*([1-9]|[1-5][0-9]|6[0-4])|([Ss][Ii][Gg])?(" + names.String() +
		"|[Rr][Tt][Mm][Ii][Nn]([+]0*([0-9]|[12][0-9]|30))?))$"
}

// ParseSignal parses a signal: a name with or without SIG, in any case, or a number.
func ParseSignal(text string) (int, error) {
	if n, err := strconv.ParseUint(text, 10, 8); err == nil && n >= 1 && n <= lastSignal {
		return int(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n := slices.Index(signalNames[:], name); n > 0 {
		return n, nil
	}
	if after, isRealTime := strings.CutPrefix(name, "RTMIN"); isRealTime {
		n, err := strconv.ParseUint(strings.TrimPrefix(after, "+"), 10, 8)
		if after == "" || err == nil && strings.HasPrefix(after, "+") && n <= lastSignal-firstRealTimeSignal {
			return firstRealTimeSignal + int(n), nil
		}
	}
	hint := DidYouMean(name, signalNames[1:])
	hint = cmp.Or(hint, fmt.Sprintf("; use a name like TERM or a number from 1 to %d", lastSignal))
	return 0, InvalidFieldError("signal", "%q is not a signal%s", ClipForMessage(text), hint)
}
