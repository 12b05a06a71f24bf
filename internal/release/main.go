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

// parts maps the name of each part of a release to its arguments and the function that writes it. If repeats is
// set, the last argument may be repeated.
var parts = map[string]struct {
	args    []string
	repeats bool
	write   func(out io.Writer, args []string) error
}{
	"changelog": {args: []string{"CHANGELOG.md", "VERSION", "DATE"}, write: writeChangelog},
	"notes":     {args: []string{"CHANGELOG.md", "VERSION"}, write: writeReleaseNotes},
	"licences":  {args: []string{"BINARY", "MODULES", "GOROOT"}, write: writeLicences},
	"bom":       {args: []string{"VERSION", "DATE", "MODULES", "GOROOT", "BINARY..."}, repeats: true, write: writeBOM},
	"docs":      {args: []string{"flat|tree", "DIR", "FILE..."}, repeats: true, write: copyDocs},
	"zip":       {args: []string{"DIR", "DATE"}, write: writeZip},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run writes the part of the release that the arguments name.
func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no part given; use one of: bom, changelog, docs, licences, notes, zip")
	}
	part, known := parts[args[0]]
	if !known {
		return fmt.Errorf("unknown part %q; use one of: bom, changelog, docs, licences, notes, zip", args[0])
	}
	if n := len(args) - 1; n < len(part.args) || n > len(part.args) && !part.repeats {
		return fmt.Errorf("usage: release %s %s", args[0], strings.Join(part.args, " "))
	}
	if err := part.write(os.Stdout, args[1:]); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
