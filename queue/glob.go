package queue

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxGlobBytes is the maximum length of a pattern, in bytes.
const MaxGlobBytes = 256

// CompileGlob returns a function that reports whether a whole text matches the pattern. In a pattern, * matches any
// text, ? any one character, [a-z] one of these characters, and [!a-z] any one character except these. The time
// to match is proportional to the length of the pattern times the length of the text.
func CompileGlob(pattern string) (func(string) bool, error) {
	if len(pattern) > MaxGlobBytes {
		return nil, InvalidFieldError("id_glob", "too long (%d bytes); the maximum is %d bytes", len(pattern), MaxGlobBytes)
	}
	expression := `(?s)\A`
	for rest := pattern; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		switch r {
		case '*':
			expression += ".*"
		case '?':
			expression += "."
		case '[':
			end := strings.IndexByte(rest, ']')
			if end < 2 {
				return nil, InvalidFieldError("id_glob", `%q has an unmatched "["; write it like build-* or job[0-9]`,
					ClipForMessage(pattern))
			}
			if rest[1:end] == "!" {
				return nil, invalidGlobError(pattern)
			}
			expression += bracketRegexp(rest[1:end])
			size = end + 1
		default:
			expression += characterRegexp(r)
		}
		rest = rest[size:]
	}
	compiled, err := regexp.Compile(expression + `\z`)
	if err != nil {
		return nil, invalidGlobError(pattern)
	}
	return compiled.MatchString, nil
}

func invalidGlobError(pattern string) error {
	return InvalidFieldError("id_glob", "%q is not a valid pattern; write it like build-* or job[0-9]",
		ClipForMessage(pattern))
}

// GlobFormat is the format of a pattern for CompileGlob. The JSON Schema also accepts reversed ranges like [z-a], which
// CompileGlob rejects.
var GlobFormat = &TextFormat{Pattern: `^([^\[]|\[(![^\]]+|[^!\]][^\]]*)\])*$`, CheckText: checkGlob}

func checkGlob(pattern string) error { return onlyError(CompileGlob(pattern)) }

// bracketRegexp returns the regular expression for the text between the brackets of a pattern. For a
// reversed range like z-a, it returns an invalid expression.
func bracketRegexp(brackets string) string {
	brackets, negated := strings.CutPrefix(brackets, "!")
	expression := "["
	if negated {
		expression += "^"
	}
	for list := []rune(brackets); len(list) > 0; list = list[1:] {
		expression += characterRegexp(list[0])
		if len(list) > 2 && list[1] == '-' {
			expression += "-" + characterRegexp(list[2])
			list = list[2:]
		}
	}
	return expression + "]"
}

// characterRegexp returns the regular expression that matches only the character r.
func characterRegexp(r rune) string { return fmt.Sprintf(`\x{%x}`, r) }
