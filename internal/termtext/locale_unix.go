//go:build unix

package termtext

import (
	"cmp"
	"os"
	"strings"
)

// asciiOnly reports whether the locale of the terminal is not UTF-8, by the variables that
// setlocale(3) reads.
func asciiOnly() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	codeset, _, _ := strings.Cut(locale[strings.IndexByte(locale, '.')+1:], "@")
	return !strings.EqualFold(strings.ReplaceAll(codeset, "-", ""), "utf8")
}
