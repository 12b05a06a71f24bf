//go:build unix

package termtext

import (
	"cmp"
	"os"
	"strings"
)

// isLocaleASCIIOnly reports whether the terminal's locale is not UTF-8, so that only ASCII can be shown. It reads
// the same variables as setlocale(3).
func isLocaleASCIIOnly() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	codeset, _, _ := strings.Cut(locale[strings.IndexByte(locale, '.')+1:], "@")
	return !strings.EqualFold(strings.ReplaceAll(codeset, "-", ""), "utf8")
}
