package queue

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxGlobBytes is the maximum length of a pattern, in bytes.
const MaxGlobBytes = 256

// Glob returns a function that reports whether a whole text matches the pattern. In a pattern, * matches any
// text, ? any one character, [a-z] one of these characters, and [!a-z] any one character except these. The time
// to match is proportional to the length of the pattern times the length of the text.
func Glob(pattern string) (func(string) bool, error) {
	if len(pattern) > MaxGlobBytes {
		return nil, Invalid("id_glob", "too long (%d bytes); the maximum is %d bytes", len(pattern), MaxGlobBytes)
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
				return nil, Invalid("id_glob", `%q has an unmatched "["; write it like build-* or job[0-9]`, Clip(pattern))
			}
			if rest[1:end] == "!" {
				return nil, invalidGlob(pattern)
			}
			expression += bracketExpression(rest[1:end])
			size = end + 1
		default:
			expression += characterExpression(r)
		}
		rest = rest[size:]
	}
	compiled, err := regexp.Compile(expression + `\z`)
	if err != nil {
		return nil, invalidGlob(pattern)
	}
	return compiled.MatchString, nil
}

func invalidGlob(pattern string) error {
	return Invalid("id_glob", "%q is not a valid pattern; write it like build-* or job[0-9]", Clip(pattern))
}

// GlobFormat is the format of a pattern for Glob. The JSON Schema also accepts reversed ranges like [z-a], which
// Glob rejects.
var GlobFormat = &TextFormat{Pattern: `^([^\[]|\[(![^\]]+|[^!\]][^\]]*)\])*$`, Check: checkGlob}

func checkGlob(pattern string) error { return errorOf(Glob(pattern)) }

// bracketExpression returns the regular expression for the text between the brackets of a pattern. For a
// reversed range like z-a, it returns an invalid expression.
func bracketExpression(brackets string) string {
	brackets, negated := strings.CutPrefix(brackets, "!")
	expression := "["
	if negated {
		expression += "^"
	}
	for list := []rune(brackets); len(list) > 0; list = list[1:] {
		expression += characterExpression(list[0])
		if len(list) > 2 && list[1] == '-' {
			expression += "-" + characterExpression(list[2])
			list = list[2:]
		}
	}
	return expression + "]"
}

// characterExpression returns the regular expression that matches only the character r.
func characterExpression(r rune) string { return fmt.Sprintf(`\x{%x}`, r) }
