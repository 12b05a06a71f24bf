package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const packageMaintainer = "queuectl maintainers <queuectl@users.noreply.github.com>"

// changelogSection is the changelog section of one version.
type changelogSection struct {
	version, date string
	notes         []string
}

// writeChangelog writes the changelog for packages, in the format of nfpm. It lists the changes in the
// section Unreleased under the version and date of the build. Its arguments are CHANGELOG.md VERSION DATE.
func writeChangelog(out io.Writer, args []string) error {
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	entries, err := parseChangelog(string(raw), args[1], args[2])
	if err != nil {
		return err
	}
	for _, e := range entries {
		fmt.Fprintf(out, "- semver: %q\n  date: %q\n  packager: %q\n  deb: {urgency: medium, distributions: "+
			"[unstable]}\n  changes:\n", e.version, e.date, packageMaintainer)
		for _, note := range e.notes {
			if _, err := fmt.Fprintf(out, "    - note: %q\n", note); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseChangelog parses a changelog in the format of Keep a Changelog: sections `## [Unreleased]` and `## [1.2.3] -
// 2026-11-22`, with one line for each change. The first section that contains changes gets buildVersion and buildDate.
func parseChangelog(text, buildVersion, buildDate string) ([]changelogSection, error) {
	var entries []changelogSection
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if title, found := strings.CutPrefix(line, "## "); found {
			name, day, dated := strings.Cut(title, " - ")
			e := changelogSection{version: strings.Trim(name, "[]"), date: day + "T00:00:00Z"}
			switch {
			case len(entries) == 0:
				e.version, e.date = buildVersion, buildDate
			case !dated:
				return nil, fmt.Errorf("section %q has no date; write: ## %[1]s - 2026-11-22", title)
			case len(entries) == 1 && len(entries[0].notes) == 0:
				entries, e.version, e.date = nil, buildVersion, buildDate
			}
			entries = append(entries, e)
		} else if note, found := strings.CutPrefix(line, "- "); found && len(entries) > 0 {
			last := &entries[len(entries)-1]
			last.notes = append(last.notes, note)
		}
	}
	if len(entries) == 0 || len(entries[0].notes) == 0 {
		return nil, errors.New("the changelog has no change under its newest heading \"## …\"; add one as a line " +
			"that begins with \"- \"")
	}
	return entries, nil
}

// writeReleaseNotes prints the changelog section of a version, without its heading. If the version has no
// section, it prints the section Unreleased. Its arguments are CHANGELOG.md VERSION.
func writeReleaseNotes(out io.Writer, args []string) error {
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	sections := strings.Split(string(raw), "\n## ")[1:]
	for _, title := range []string{"[" + args[1] + "] - ", "[Unreleased]\n"} {
		for _, section := range sections {
			if strings.HasPrefix(section, title) {
				_, text, _ := strings.Cut(section, "\n")
				_, err := fmt.Fprintln(out, strings.TrimSpace(text))
				return err
			}
		}
	}
	return fmt.Errorf("%s has no section for version %s", args[0], args[1])
}
