package queue

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrorCode is a kind of failure on which a caller can act. In the protocol it is the member data.code. Package
// control defines the number and the exit status of each code.
type ErrorCode string

// These are the codes in the error table of the protocol.
const (
	CodeInvalid        ErrorCode = "invalid"
	CodeInvalidRequest ErrorCode = "invalid_request"
	CodeParse          ErrorCode = "parse"
	CodeTooLarge       ErrorCode = "too_large"
	CodeUnsupported    ErrorCode = "unsupported"
	CodeNotFound       ErrorCode = "not_found"
	CodeExists         ErrorCode = "exists"
	CodeWrongState     ErrorCode = "wrong_state"
	CodeDenied         ErrorCode = "denied"
	CodeQueueFull      ErrorCode = "full"
	CodeNoSpace        ErrorCode = "no_space"
	CodeUnavailable    ErrorCode = "unavailable"
	CodeOutcomeUnknown ErrorCode = "outcome_unknown"
	CodeInternal       ErrorCode = "internal"
)

// Error is a failure with a code. errors.Is compares only the codes of two Errors, so a client can compare an
// error of the service with a variable such as ErrInvalid.
type Error struct {
	Code       ErrorCode
	Field      string // field that the error is about; "" if none
	BatchIndex int    // number of the job in a batch, from 1; 0 if none
	Message    string // text for users, with a next step if possible
}

// Error returns the message, preceded by the number of the job and the field, if set. For an error without a message,
// it uses the code.
func (e *Error) Error() string {
	s := cmp.Or(e.Message, string(e.Code))
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.BatchIndex > 0 {
		s = fmt.Sprintf("entry %d: %s", e.BatchIndex, s)
	}
	return s
}

// WithBatchIndex returns a copy of the error with the number of a job in a batch. The first job has number 1.
func (e *Error) WithBatchIndex(batchIndex int) *Error {
	indexed := *e
	indexed.BatchIndex = batchIndex
	return &indexed
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// These are targets for errors.Is, one for each code.
var (
	ErrInvalid        = &Error{Code: CodeInvalid}
	ErrInvalidRequest = &Error{Code: CodeInvalidRequest}
	ErrParse          = &Error{Code: CodeParse}
	ErrTooLarge       = &Error{Code: CodeTooLarge}
	ErrUnsupported    = &Error{Code: CodeUnsupported}
	ErrNotFound       = &Error{Code: CodeNotFound}
	ErrExists         = &Error{Code: CodeExists}
	ErrWrongState     = &Error{Code: CodeWrongState}
	ErrDenied         = &Error{Code: CodeDenied}
	ErrQueueFull      = &Error{Code: CodeQueueFull}
	ErrNoSpace        = &Error{Code: CodeNoSpace}
	ErrUnavailable    = &Error{Code: CodeUnavailable}
	ErrOutcomeUnknown = &Error{Code: CodeOutcomeUnknown}
	ErrInternal       = &Error{Code: CodeInternal}
)

// Errorf returns an Error with the code.
func Errorf(code ErrorCode, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// InvalidFieldError returns an Error of CodeInvalid about a field. If the name of the field is long, it is shortened in
// the error.
func InvalidFieldError(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: ClipForMessage(field), Message: fmt.Sprintf(format, args...)}
}

// maxClippedBytes is the maximum length, in bytes of JSON, of a value that an error message repeats.
const maxClippedBytes = 80

// ClipForMessage shortens a text for an error message. A text that takes more than 80 bytes as JSON is cut
// after a whole character and ends with an ellipsis.
func ClipForMessage(s string) string { return ClipJSON(s, maxClippedBytes) }

// ClipJSON shortens a text that takes more than maxBytes bytes in JSON, without the quotes. It cuts after a whole
// character and appends an ellipsis, which may exceed maxBytes.
func ClipJSON(s string, maxBytes int) string {
	if 6*len(s) <= maxBytes { // JSON needs at most six bytes for one byte
		return s
	}
	total := 0
	for i, r := range s {
		total += jsonEncodedBytes(s[i:], r)
		if total > maxBytes {
			return s[:i] + "…"
		}
	}
	return s
}

// jsonEncodedBytes returns how many bytes json.Marshal writes for r, the first character of text.
func jsonEncodedBytes(text string, r rune) int {
	switch r {
	case '"', '\\', '\n', '\r', '\t', '\b', '\f':
		return 2
	case '<', '>', '&', '\u2028', '\u2029':
		return 6
	case utf8.RuneError:
		if !strings.HasPrefix(text, string(utf8.RuneError)) {
			return 6 // for invalid UTF-8, json.Marshal writes \ufffd
		}
	}
	if r < ' ' {
		return 6
	}
	return utf8.RuneLen(r)
}

// maxListedErrors is the maximum number of problems with one input that an error lists.
const maxListedErrors = 20

// errorList collects the problems with one input.
type errorList struct {
	problems    []error
	isTruncated bool
}

// add records a problem. It ignores nil. After maxListedErrors problems, it only records that there are more.
func (l *errorList) add(problem error) {
	switch {
	case problem == nil:
	case len(l.problems) == maxListedErrors:
		l.isTruncated = true
	default:
		l.problems = append(l.problems, problem)
	}
}

// err combines all problems into one *Error, with the field of the first problem. It returns nil if no problem was
// added.
func (l *errorList) err() error {
	if len(l.problems) == 0 {
		return nil
	}
	var first *Error
	if !errors.As(l.problems[0], &first) {
		first = Errorf(CodeInvalid, "%s", l.problems[0])
	}
	if len(l.problems) == 1 {
		return first
	}
	var b strings.Builder
	b.WriteString(first.Message)
	for _, problem := range l.problems[1:] {
		b.WriteString("; ")
		b.WriteString(problem.Error())
	}
	joined := *first
	joined.Message = ClipJSON(b.String(), MaxErrorBytes)
	if l.isTruncated {
		joined.Message += "; and more errors"
	}
	return &joined
}

// DidYouMean returns "; did you mean …?" with the known word that is most similar to word. It returns "" if no known
// word is similar enough. Two words are similar enough if their distance d (see editDistance) and the length n of the
// longer word fulfil 2d < n and 3d ≤ n+1.
func DidYouMean(word string, knownWords []string) string {
	if best := NearestWord(word, knownWords); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// NearestWord returns the known word that DidYouMean would suggest, or "".
func NearestWord(word string, knownWords []string) string {
	return NearestWordWithin(word, knownWords, len(word))
}

// NearestWordWithin is like NearestWord, but ignores words whose editDistance is more than maxMistakes.
func NearestWordWithin(word string, knownWords []string, maxMistakes int) (best string) {
	bestDistance := 1 << 30
	if len(word) > 64 {
		return ""
	}
	for _, k := range knownWords {
		d := editDistance(strings.ReplaceAll(word, "-", "_"), strings.ReplaceAll(k, "-", "_"))
		if longest := max(len(k), len(word)); d < bestDistance && d <= maxMistakes && 3*d <= longest+1 && 2*d < longest {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance returns the Damerau-Levenshtein distance of two words: how many letters must be changed, added,
// removed or swapped with their neighbour to get from one to the other.
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			wrong := last[j]
			if a[i] != b[j] {
				wrong++
			}
			row[j+1] = min(wrong, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// JobNotFoundError returns the error for an id that no job has. If the id is a word such as all or dead, the user
// probably wanted to select several jobs, so the error suggests an option for that.
func JobNotFoundError(id string) error {
	const selectHint = "; to select several jobs, most commands take "
	hint := ""
	if id == "all" {
		hint = selectHint + "--all instead of an id"
	} else if state := StateNameForWord(id); state != "" {
		hint = selectHint + "--state " + state + " instead of an id"
	}
	return Errorf(CodeNotFound, "there is no job %q%s", ClipForMessage(id), hint)
}
