package queue

import (
	"regexp"
	"strings"
)

// Glob makes of a pattern what tells texts that match it as a whole: * is any
// text, ? any one character, [a-z] one of these, [!a-z] none of these.
func Glob(pattern string) (func(string) bool, error) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			b.WriteString(`.*`)
		case '?':
			b.WriteString(`.`)
		case '[':
			end := strings.IndexByte(pattern[i:], ']')
			if end < 2 {
				return nil, Invalid("id_glob", "%q has a [ without its ]", Clip(pattern))
			}
			class := pattern[i+1 : i+end]
			b.WriteByte('[')
			if class[0] == '!' {
				b.WriteByte('^')
				class = class[1:]
			}
			b.WriteString(strings.NewReplacer(`\`, `\\`, `[`, `\[`, `^`, `\^`).Replace(class) + "]")
			i += end
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	re, err := regexp.Compile(b.String() + `\z`)
	if err != nil {
		return nil, Invalid("id_glob", "%q is not a pattern; write it like build-* or job[0-9]", Clip(pattern))
	}
	return re.MatchString, nil
}
