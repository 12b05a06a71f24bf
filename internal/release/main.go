// Command release writes what goes with a release beside the program: the changelog
// of the packages, the licences of all that is linked in, the bill of materials, and
// the .zip.
// The same input gives the same bytes.
package main

import (
	"fmt"
	"io"
	"os"
)

// parts are what it can write, from their arguments to standard output.
var parts = map[string]struct {
	args  []string
	write func(out io.Writer, args []string) error
}{
	"changelog": {[]string{"CHANGELOG.md", "VERSION", "DATE"}, changelog},
	"licences":  {[]string{"BINARY", "MODULES", "GOROOT"}, licences},
	"bom":       {[]string{"BINARY", "VERSION", "DATE"}, bom},
	"zip":       {[]string{"FOLDER", "DATE"}, pack},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("names one of: changelog, licences, bom, zip")
	}
	part, known := parts[args[0]]
	if !known || len(args)-1 != len(part.args) {
		return fmt.Errorf("%s takes %v", args[0], part.args)
	}
	if err := part.write(os.Stdout, args[1:]); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
