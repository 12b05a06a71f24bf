package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const maintainer = "queuectl maintainers <queuectl@users.noreply.github.com>"

// entry is a version and what it brought.
type entry struct {
	version, date string
	notes         []string
}

// changelog turns the project's changelog into the one that packages carry. What is
// not released yet belongs to the version that is built, as of its date.
func changelog(out io.Writer, args []string) error {
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	entries, err := readChangelog(string(raw), args[1], args[2])
	if err != nil {
		return err
	}
	for _, e := range entries {
		fmt.Fprintf(out, "- semver: %q\n  date: %q\n  packager: %q\n  deb: {urgency: medium, distributions: [unstable]}\n  changes:\n", e.version, e.date, maintainer)
		for _, note := range e.notes {
			if _, err := fmt.Fprintf(out, "    - note: %q\n", note); err != nil {
				return err
			}
		}
	}
	return nil
}

// readChangelog reads sections `## Unreleased` and `## 1.2.3, 2026-11-22` with a line
// for each change. The first is the version that is built.
func readChangelog(text, version, date string) ([]entry, error) {
	var entries []entry
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if title, found := strings.CutPrefix(line, "## "); found {
			name, day, dated := strings.Cut(title, ", ")
			e := entry{version: name, date: day + "T00:00:00Z"}
			if len(entries) == 0 {
				e.version, e.date = version, date
			} else if !dated {
				return nil, fmt.Errorf("section %q has no date; write: ## 1.2.3, 2026-11-22", title)
			}
			entries = append(entries, e)
		} else if note, found := strings.CutPrefix(line, "- "); found && len(entries) > 0 {
			last := &entries[len(entries)-1]
			last.notes = append(last.notes, note)
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("no section")
	}
	return entries, nil
}
