package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNestingDepth is the maximum nesting depth of JSON input.
const maxNestingDepth = 32

// MaxObjectMembers is the maximum number of members of a JSON object in the input.
const MaxObjectMembers = 16_384

// CheckJSON checks that line is one JSON value in UTF-8, nested at most 32 levels deep, without a raw NUL. The error is
// an *Error of CodeParse that says where the fault is. Call CheckJSON before EachMember, EachElement and
// DecodeJSONString, because these functions do not check their input.
//
// CheckJSON checks long strings itself, and the rest with package json. This is faster than checking everything with
// package json, because much of the input is output of jobs in long strings.
func CheckJSON(line []byte) error {
	depth := 0
	// shortenedLine is line without the contents of long strings. Package json checks shortenedLine. CheckJSON itself
	// checks the long strings.
	var shortenedLine []byte
	from := 0 // start of the part of line that is not in shortenedLine yet
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			end := skipJSONString(line, i)
			if end-i > longStringBytes && end < len(line) && isPlainJSONText(line[i+1:end]) {
				shortenedLine = append(shortenedLine, line[from:i+1]...)
				from = end
			}
			i = end
		case '{', '[':
			if depth++; depth > maxNestingDepth {
				return Errorf(CodeParse, "JSON is nested more than %d levels deep at byte %d", maxNestingDepth, i+1)
			}
		case '}', ']':
			depth--
		}
	}
	if !utf8.Valid(line) {
		return Errorf(CodeParse, "the JSON text is not valid UTF-8")
	}
	if from == 0 {
		shortenedLine = line
	} else {
		shortenedLine = append(shortenedLine, line[from:]...)
	}
	if json.Valid(shortenedLine) {
		return nil
	}
	var v any
	err := json.Unmarshal(line, &v)
	if syntax, ok := err.(*json.SyntaxError); ok {
		return Errorf(CodeParse, "invalid JSON: %s at byte %d", syntax, syntax.Offset)
	}
	return Errorf(CodeParse, "invalid JSON: %v", err)
}

// longStringBytes is the length, in bytes, above which CheckJSON checks a string itself.
const longStringBytes = 256

// isPlainJSONText reports whether the text of a JSON string contains no control characters and only one-letter escapes.
// Such a text is valid, if it is UTF-8. A text for which the result is false may be valid too.
func isPlainJSONText(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c < ' ':
			return false
		case c == '\\':
			if i++; escapedCharByLetter[text[i]] == 0 {
				return false
			}
		}
	}
	return true
}

// EachMember passes the members of a JSON object, in order, to visit. CheckJSON must have accepted data.
// EachMember returns an error if data is not an object, has more than MaxObjectMembers members, or contains a name
// twice. It takes linear time.
func EachMember(data []byte, visit func(name string, value json.RawMessage) error) error {
	i := skipJSONSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return Errorf(CodeInvalid, "must be a JSON object")
	}
	seen := map[string]bool{}
	for i = skipJSONSpace(data, i+1); data[i] != '}'; {
		end := skipJSONValue(data, i)
		name, err := DecodeJSONString(data[i:end])
		if err != nil {
			return err
		}
		if seen[name] {
			return InvalidFieldError(name, "the member is given twice; give it once")
		}
		if len(seen) == MaxObjectMembers {
			return Errorf(CodeInvalid, "the JSON object has too many members; the maximum is %d", MaxObjectMembers)
		}
		seen[name] = true
		i = skipJSONSpace(data, skipJSONSpace(data, end)+1) // skip the colon
		end = skipJSONValue(data, i)
		if err := visit(name, json.RawMessage(data[i:end])); err != nil {
			return err
		}
		if i = skipJSONSpace(data, end); data[i] == ',' {
			i = skipJSONSpace(data, i+1)
		}
	}
	return nil
}

// EachElement passes the elements of a JSON array, in order, to visit. CheckJSON must have accepted data.
// EachElement returns an error if data is not an array.
func EachElement(data []byte, visit func(value json.RawMessage) error) error {
	i := skipJSONSpace(data, 0)
	if i >= len(data) || data[i] != '[' {
		return Errorf(CodeInvalid, "must be a JSON array")
	}
	for i = skipJSONSpace(data, i+1); data[i] != ']'; {
		end := skipJSONValue(data, i)
		if err := visit(json.RawMessage(data[i:end])); err != nil {
			return err
		}
		if i = skipJSONSpace(data, end); data[i] == ',' {
			i = skipJSONSpace(data, i+1)
		}
	}
	return nil
}

// skipJSONSpace returns the index of the first character from i on that is not white space.
func skipJSONSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// skipJSONValue returns the index after the JSON value that begins at i. The value must be valid.
func skipJSONValue(data []byte, i int) int {
	depth := 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = skipJSONString(data, i)
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // a number or literal ends where the surrounding object or array ends
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

// skipJSONString returns the index of the closing quote of the JSON string that begins at i. It returns len(data)
// if the string has no closing quote.
func skipJSONString(data []byte, i int) int {
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

// DecodeJSONString returns the text of a JSON string that CheckJSON has accepted. It decodes one-letter escapes itself,
// and other escapes with package json. This is faster than using package json alone, because much of the input is
// output of jobs with many newlines.
func DecodeJSONString(raw json.RawMessage) (string, error) {
	if len(raw) < 2 || raw[0] != '"' {
		return unmarshalJSONString(raw)
	}
	rest := raw[1 : len(raw)-1]
	at := bytes.IndexByte(rest, '\\')
	if at < 0 {
		return string(rest), nil
	}
	text := make([]byte, 0, len(rest))
	for ; at >= 0; at = bytes.IndexByte(rest, '\\') {
		c := escapedCharByLetter[rest[at+1]]
		if c == 0 { // not a one-letter escape
			return unmarshalJSONString(raw)
		}
		text = append(append(text, rest[:at]...), c)
		rest = rest[at+2:]
	}
	return string(append(text, rest...)), nil
}

// unmarshalJSONString returns the text of a JSON string, decoded by package json.
func unmarshalJSONString(raw json.RawMessage) (s string, err error) {
	if json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("must be text")
	}
	return s, CheckSurrogates(raw)
}

// CheckSurrogates returns an error if a JSON string contains only one half of an escaped surrogate pair. One half is
// not a character (RFC 8259, section 8.2), and package json would silently replace it. CheckJSON must have accepted the
// string.
func CheckSurrogates(raw json.RawMessage) error {
	for at := 0; ; {
		next := bytes.IndexByte(raw[at:], '\\')
		if next < 0 {
			return nil
		}
		at += next
		first := escapedCodeUnit(raw[at:])
		if !utf16.IsSurrogate(first) {
			at += 2 // skip the backslash and one character
			continue
		}
		if utf16.DecodeRune(first, escapedCodeUnit(raw[at+6:])) == utf8.RuneError {
			return fmt.Errorf("contains %s, which is only half of a surrogate pair; send both halves", raw[at:at+6])
		}
		at += 12
	}
}

// escapedCodeUnit returns the code unit of the \u escape at the start of raw. It returns 0 if raw does not
// start with such an escape.
func escapedCodeUnit(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(raw[2:6]), 16, 16) // CheckJSON has checked the digits
	return rune(n)
}

// escapedCharByLetter maps the letter of a one-letter escape (RFC 8259, section 7) to its character. For all other
// letters it contains 0.
var escapedCharByLetter = [256]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/', 'b': '\b',
	'f': '\f'}

// letterByEscapedChar maps characters to the letters of their escapes. It omits the slash, which need not be escaped.
var letterByEscapedChar = [256]byte{'\n': 'n', '\r': 'r', '\t': 't', '"': '"', '\\': '\\', '\b': 'b', '\f': 'f'}

// AppendJSONString appends a text as a JSON string. The text must be UTF-8.
func AppendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		if letter := letterByEscapedChar[c]; letter != 0 {
			dst = append(dst, '\\', letter)
		} else {
			dst = fmt.Appendf(dst, `\u%04x`, c)
		}
	}
	return append(append(dst, s[from:]...), '"')
}
