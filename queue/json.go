package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep JSON from outside may nest.
const maxDepth = 32

// MaxMembers is how many members a JSON object from outside may have.
const MaxMembers = 16_384

// CheckJSON reports whether line is one JSON value that is UTF-8, nests at most
// 32 deep and holds no raw NUL; the error is a *Error of CodeParse that says
// where it breaks. Members and Elements trust what it has passed.
func CheckJSON(line []byte) error {
	depth := 0
	var frame []byte // the line without long strings, which are looked at here: much of what is read is output
	from := 0        // in the line, of what is not in the frame yet
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			end := skipString(line, i)
			if end-i > longString && end < len(line) && wellFormed(line[i+1:end]) {
				frame = append(frame, line[from:i+1]...)
				from = end
			}
			i = end
		case '{', '[':
			if depth++; depth > maxDepth {
				return Errorf(CodeParse, "JSON is nested more than %d levels deep at byte %d", maxDepth, i+1)
			}
		case '}', ']':
			depth--
		}
	}
	if !utf8.Valid(line) {
		return Errorf(CodeParse, "invalid UTF-8")
	}
	if from == 0 {
		frame = line
	} else {
		frame = append(frame, line[from:]...)
	}
	if json.Valid(frame) {
		return nil
	}
	var v any
	err := json.Unmarshal(line, &v)
	if syntax, ok := err.(*json.SyntaxError); ok {
		return Errorf(CodeParse, "invalid JSON: %s at byte %d", syntax, syntax.Offset)
	}
	return Errorf(CodeParse, "invalid JSON: %v", err)
}

// longString is from how many bytes on a string is worth a look of its own.
const longString = 256

// wellFormed reports whether the text of a JSON string that is UTF-8 is sure to be valid: it holds no
// control characters, and escapes of one letter alone.
func wellFormed(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c < ' ':
			return false
		case c == '\\':
			if i++; unescaped[text[i]] == 0 {
				return false
			}
		}
	}
	return true
}

// Members calls each with every member of a JSON object that CheckJSON passed,
// in order, in time that is linear in the object. It fails when data is no object, has
// more than MaxMembers members or names one twice.
func Members(data []byte, each func(name string, value json.RawMessage) error) error {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return Errorf(CodeInvalid, "must be a JSON object")
	}
	var seen names
	for i = skipSpace(data, i+1); data[i] != '}'; {
		end := skipValue(data, i)
		name, err := Text(data[i:end])
		if err != nil {
			return err
		}
		if seen.has(name) {
			return Invalid(name, "the member is given twice; give it once")
		}
		if seen.n == MaxMembers {
			return Errorf(CodeInvalid, "the JSON object has too many members; the maximum is %d", MaxMembers)
		}
		seen.add(name)
		i = skipSpace(data, skipSpace(data, end)+1) // the colon
		end = skipValue(data, i)
		if err := each(name, json.RawMessage(data[i:end])); err != nil {
			return err
		}
		if i = skipSpace(data, end); data[i] == ',' {
			i = skipSpace(data, i+1)
		}
	}
	return nil
}

// names is a set of names: few of them, as nearly always, cost no map.
type names struct {
	n    int
	few  [16]string
	many map[string]bool // all of them, once there are more than few
}

func (s *names) has(name string) bool {
	if s.many != nil {
		return s.many[name]
	}
	for _, f := range s.few[:s.n] {
		if f == name {
			return true
		}
	}
	return false
}

func (s *names) add(name string) {
	switch {
	case s.n < len(s.few):
		s.few[s.n] = name
	case s.n == len(s.few):
		s.many = make(map[string]bool, 4*len(s.few))
		for _, f := range s.few {
			s.many[f] = true
		}
		fallthrough
	default:
		s.many[name] = true
	}
	s.n++
}

// Elements calls each with every element of a JSON array that CheckJSON passed.
// It fails when data is no array.
func Elements(data []byte, each func(value json.RawMessage) error) error {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '[' {
		return Errorf(CodeInvalid, "must be a JSON array")
	}
	for i = skipSpace(data, i+1); data[i] != ']'; {
		end := skipValue(data, i)
		if err := each(json.RawMessage(data[i:end])); err != nil {
			return err
		}
		if i = skipSpace(data, end); data[i] == ',' {
			i = skipSpace(data, i+1)
		}
	}
	return nil
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// skipValue is the index after the valid JSON value that begins at i.
func skipValue(data []byte, i int) int {
	depth := 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = skipString(data, i)
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // the end of the value's parent, after a number or literal
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// skipString is the index of the quote that ends the JSON string which begins at i, len(data) if
// it has no end.
func skipString(data []byte, i int) int {
	for from := i + 1; ; {
		length := bytes.IndexByte(data[from:], '"')
		if length < 0 {
			return len(data)
		}
		end := from + length
		escapes := 0
		for data[end-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		from = end + 1
	}
}

// Text reads a JSON string that CheckJSON passed. Much of what is read is output of jobs, with
// many escapes for line ends: those of one letter are read here, others by the library.
func Text(raw json.RawMessage) (string, error) {
	if len(raw) < 2 || raw[0] != '"' {
		return textOf(raw)
	}
	rest := raw[1 : len(raw)-1]
	at := bytes.IndexByte(rest, '\\')
	if at < 0 {
		return string(rest), nil
	}
	text := make([]byte, 0, len(rest))
	for ; at >= 0; at = bytes.IndexByte(rest, '\\') {
		c := unescaped[rest[at+1]]
		if c == 0 { // \u
			return textOf(raw)
		}
		text = append(append(text, rest[:at]...), c)
		rest = rest[at+2:]
	}
	return string(append(text, rest...)), nil
}

func textOf(raw json.RawMessage) (s string, err error) {
	if json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("must be text")
	}
	return s, CheckText(raw)
}

// CheckText refuses a JSON string that CheckJSON passed if it has an escape of half a surrogate pair,
// which is no character (RFC 8259, section 8.2): the library reads another one.
func CheckText(raw json.RawMessage) error {
	for at := 0; ; {
		next := bytes.IndexByte(raw[at:], '\\')
		if next < 0 {
			return nil
		}
		at += next
		first := escaped(raw[at:])
		if !utf16.IsSurrogate(first) {
			at += 2 // at least
			continue
		}
		if utf16.DecodeRune(first, escaped(raw[at+6:])) == utf8.RuneError {
			return fmt.Errorf("contains %s, which is only half of a surrogate pair; send both halves", raw[at:at+6])
		}
		at += 12
	}
}

// escaped is the code unit of an escape of four digits that a text in JSON begins with, 0 if it begins with none.
func escaped(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(raw[2:6]), 16, 16) // it is JSON
	return rune(n)
}

// unescaped is what the escapes of one letter in JSON (RFC 8259, section 7) stand for; for no letter
// is it 0.
var unescaped = [256]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f'}

// escapeLetters are those of the characters that JSON has one for, but for the slash, which needs none.
var escapeLetters = [256]byte{'\n': 'n', '\r': 'r', '\t': 't', '"': '"', '\\': '\\', '\b': 'b', '\f': 'f'}

// AppendText appends a text, which must be UTF-8, as JSON.
func AppendText(to []byte, s string) []byte {
	to = append(to, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		to = append(to, s[from:i]...)
		from = i + 1
		if letter := escapeLetters[c]; letter != 0 {
			to = append(to, '\\', letter)
		} else {
			to = fmt.Appendf(to, `\u%04x`, c)
		}
	}
	return append(append(to, s[from:]...), '"')
}
