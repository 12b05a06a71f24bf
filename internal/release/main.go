// Command release writes the files that accompany the programs in a release: the packages' changelog,
// the release notes, the licences of all linked code, the bill of materials, the installed pages and
// the .zip. Its output depends only on its input.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// releaseParts maps the name of each part of a release to the names of its arguments and the function that writes it.
// If repeatsLastArg is set, the last argument may be given several times.
var releaseParts = map[string]struct {
	argNames       []string
	repeatsLastArg bool
	write          func(out io.Writer, args []string) error
}{
	"changelog": {argNames: []string{"CHANGELOG.md", "VERSION", "DATE"}, write: writeChangelog},
	"notes":     {argNames: []string{"CHANGELOG.md", "VERSION"}, write: writeReleaseNotes},
	"licences":  {argNames: []string{"BINARY", "MODULES", "GOROOT"}, write: writeLicences},
	"bom": {argNames: []string{"VERSION", "DATE", "MODULES", "GOROOT", "BINARY..."}, repeatsLastArg: true,
		write: writeBOM},
	"docs": {argNames: []string{"flat|tree", "DIR", "FILE..."}, repeatsLastArg: true, write: copyDocs},
	"zip":  {argNames: []string{"DIR", "DATE"}, write: writeZip},
}

func main() {
	if err := writeReleasePart(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// writeReleasePart writes the part of the release that the arguments name.
func writeReleasePart(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no part given; use one of: bom, changelog, docs, licences, notes, zip")
	}
	part, known := releaseParts[args[0]]
	if !known {
		return fmt.Errorf("unknown part %q; use one of: bom, changelog, docs, licences, notes, zip", args[0])
	}
	if n := len(args) - 1; n < len(part.argNames) || n > len(part.argNames) && !part.repeatsLastArg {
		return fmt.Errorf("usage: release %s %s", args[0], strings.Join(part.argNames, " "))
	}
	if err := part.write(os.Stdout, args[1:]); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
