package queue

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Code names a kind of failure that someone acts on. The codes are the wire's
// data.code; package control holds their numbers and exit codes.
type Code string

// The codes of the protocol's error table.
const (
	CodeInvalid        Code = "invalid"
	CodeRequest        Code = "invalid_request"
	CodeParse          Code = "parse"
	CodeTooLarge       Code = "too_large"
	CodeUnsupported    Code = "unsupported"
	CodeNotFound       Code = "not_found"
	CodeExists         Code = "exists"
	CodeWrongState     Code = "wrong_state"
	CodeDenied         Code = "denied"
	CodeFull           Code = "full"
	CodeNoSpace        Code = "no_space"
	CodeUnavailable    Code = "unavailable"
	CodeOutcomeUnknown Code = "outcome_unknown"
	CodeInternal       Code = "internal"
)

// Error is a failure with a code. Two Errors are the same to errors.Is when
// their codes are, so an error keeps its identity across the socket.
type Error struct {
	Code    Code
	Field   string // the field at fault, "" if none
	Index   int    // which job of a batch, from 1; 0 if none
	Message string // a sentence for a person, naming the next step where there is one
}

// Error is the message, preceded by the field at fault.
func (e *Error) Error() string {
	s := e.Message
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Index > 0 {
		s = fmt.Sprintf("job %d: %s", e.Index, s)
	}
	return s
}

// At is the same error about one job of a batch, the first being 1.
func (e *Error) At(index int) *Error {
	at := *e
	at.Index = index
	return &at
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// The sentinels, for errors.Is.
var (
	ErrInvalid        = &Error{Code: CodeInvalid, Message: "invalid"}
	ErrRequest        = &Error{Code: CodeRequest, Message: "invalid request"}
	ErrParse          = &Error{Code: CodeParse, Message: "invalid JSON"}
	ErrTooLarge       = &Error{Code: CodeTooLarge, Message: "too large"}
	ErrUnsupported    = &Error{Code: CodeUnsupported, Message: "unsupported"}
	ErrNotFound       = &Error{Code: CodeNotFound, Message: "not found"}
	ErrExists         = &Error{Code: CodeExists, Message: "already exists"}
	ErrWrongState     = &Error{Code: CodeWrongState, Message: "wrong state"}
	ErrDenied         = &Error{Code: CodeDenied, Message: "denied"}
	ErrFull           = &Error{Code: CodeFull, Message: "the queue is full"}
	ErrNoSpace        = &Error{Code: CodeNoSpace, Message: "no space left on the disk"}
	ErrUnavailable    = &Error{Code: CodeUnavailable, Message: "unavailable"}
	ErrOutcomeUnknown = &Error{Code: CodeOutcomeUnknown, Message: "the outcome of the request is unknown"}
	ErrInternal       = &Error{Code: CodeInternal, Message: "internal error"}
)

// Errorf makes an Error with the code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes an Error of CodeInvalid about a field, whose name is clipped.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: Clip(field), Message: fmt.Sprintf(format, args...)}
}

// maxClip is how much of a text an error echoes, in bytes as JSON writes them.
const maxClip = 80

// Clip is a text as an error may echo it: a longer one ends after 80 bytes of JSON, at a
// whole character, with an ellipsis.
func Clip(s string) string { return ClipJSON(s, maxClip) }

// ClipJSON is a text that takes at most so many bytes as a JSON string, without its
// quotes: a longer one is cut at a whole character and ends with an ellipsis.
func ClipJSON(s string, most int) string {
	if 6*len(s) <= most { // JSON writes a byte as six at most
		return s
	}
	total := 0
	for i, r := range s {
		total += jsonSize(s[i:], r)
		if total > most {
			return s[:i] + "…"
		}
	}
	return s
}

// jsonSize is how many bytes json.Marshal takes for a character, which rest begins with.
func jsonSize(rest string, r rune) int {
	switch r {
	case '"', '\\', '\n', '\r', '\t', '\b', '\f':
		return 2
	case '<', '>', '&', '\u2028', '\u2029':
		return 6
	case utf8.RuneError:
		if !strings.HasPrefix(rest, string(utf8.RuneError)) {
			return 6 // no UTF-8
		}
	}
	if r < ' ' {
		return 6
	}
	return utf8.RuneLen(r)
}

// maxFaults is how many faults of one input an error tells.
const maxFaults = 20

// faults gathers what is wrong with one input.
type faults struct {
	told []error
	more bool
}

// add notes a fault. Beyond maxFaults nobody is told what it is, so it is not made.
func (f *faults) add(fault func() error) {
	if len(f.told) == maxFaults {
		f.more = true
		return
	}
	f.told = append(f.told, fault())
}

// err makes one *Error of all faults, naming the first one's field; nil if there is none.
func (f *faults) err() error {
	if len(f.told) == 0 {
		return nil
	}
	var first *Error
	if !errors.As(f.told[0], &first) {
		first = Errorf(CodeInvalid, "%s", f.told[0])
	}
	if len(f.told) == 1 {
		return first
	}
	var b strings.Builder
	b.WriteString(first.Message)
	for _, fault := range f.told[1:] {
		b.WriteString("; ")
		b.WriteString(fault.Error())
	}
	joined := *first
	joined.Message = ClipJSON(b.String(), MaxErrorBytes)
	if f.more {
		joined.Message += "; and more errors"
	}
	return &joined
}

// Nearest suggests the known word closest to word, as "; did you mean …?", or
// is "" where nothing is close. Distance is Levenshtein's, at most a third of
// the longer word.
func Nearest(word string, known []string) string {
	if best := NearestWord(word, known); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// NearestWord is the word that Nearest suggests, "" if there is none.
func NearestWord(word string, known []string) (best string) {
	bestDistance := 1 << 30
	if len(word) > 64 {
		return ""
	}
	for _, k := range known {
		d := distance(strings.ReplaceAll(word, "-", "_"), strings.ReplaceAll(k, "-", "_"))
		if d < bestDistance && 3*d <= max(len(k), len(word))+1 {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the edit distance of Levenshtein (1965), by the usual row method.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := previous
			if a[i] != b[j] {
				cost++
			}
			previous = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// NoJob returns the error of an id that no job has. People type "retry all" and "retry dead", where all and dead are ids.
func NoJob(id string) error {
	hint := ""
	if id == "all" {
		hint = "; commands for several jobs accept --all"
	} else if state := StateMeant(id); state != "" {
		hint = "; commands for several jobs accept --state " + state
	}
	return Errorf(CodeNotFound, "there is no job %q%s", Clip(id), hint)
}
