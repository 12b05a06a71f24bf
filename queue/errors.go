package queue

import (
	"fmt"
	"strings"
)

// Code names a kind of failure that someone acts on. The codes are the wire's
// data.code; package control holds their numbers and exit codes.
type Code string

// The codes of the protocol's error table.
const (
	CodeInvalid        Code = "invalid"
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
	ErrParse          = &Error{Code: CodeParse, Message: "not JSON"}
	ErrTooLarge       = &Error{Code: CodeTooLarge, Message: "too large"}
	ErrUnsupported    = &Error{Code: CodeUnsupported, Message: "unsupported"}
	ErrNotFound       = &Error{Code: CodeNotFound, Message: "not found"}
	ErrExists         = &Error{Code: CodeExists, Message: "exists already"}
	ErrWrongState     = &Error{Code: CodeWrongState, Message: "wrong state"}
	ErrDenied         = &Error{Code: CodeDenied, Message: "denied"}
	ErrFull           = &Error{Code: CodeFull, Message: "the queue is full"}
	ErrNoSpace        = &Error{Code: CodeNoSpace, Message: "no space on the disk"}
	ErrUnavailable    = &Error{Code: CodeUnavailable, Message: "unavailable"}
	ErrOutcomeUnknown = &Error{Code: CodeOutcomeUnknown, Message: "the outcome is unknown"}
	ErrInternal       = &Error{Code: CodeInternal, Message: "internal error"}
)

// Errorf makes an Error with the code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes an Error of CodeInvalid about a field.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Nearest suggests the known word closest to word, as "; did you mean …?", or
// is "" where nothing is close. Distance is Levenshtein's, at most a third of
// the longer word.
func Nearest(word string, known []string) string {
	best, bestDistance := "", 1<<30
	if len(word) > 64 {
		return ""
	}
	for _, k := range known {
		d := distance(strings.ReplaceAll(word, "-", "_"), strings.ReplaceAll(k, "-", "_"))
		if d < bestDistance && 3*d <= max(len(k), len(word))+1 {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
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
