package private

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// runManifest contains everything that determines the jobs of a private run, except the lines of the list of jobs. It
// is stored in the directory of the run. A later run with the same directory compares its own manifest with the stored
// one, and lists the differences in an error. See docs/decisions/0067.
type runManifest struct {
	JobListSource   string                     `json:"from"`              // source of the list, such as "--file"
	CommandTemplate []string                   `json:"program,omitempty"` // program to run for each argument
	JobFields       map[string]json.RawMessage `json:"fields"`            // fields that the flags set in every job
}

// newRunManifest returns the manifest for the flags and arguments of this run.
func (p *privateJobs) newRunManifest() (*runManifest, error) {
	raw, err := json.Marshal(&p.commonSpec)
	if err != nil {
		return nil, err
	}
	a := &runManifest{JobListSource: "a program for each argument", CommandTemplate: p.CommandTemplate}
	switch {
	case p.JobsFile != "":
		a.JobListSource = "--file"
	case p.CommandsFile != "":
		a.JobListSource = "--lines"
	}
	return a, json.Unmarshal(raw, &a.JobFields)
}

// save writes the manifest into a directory, and returns when it is durable.
func (a *runManifest) save(dir string) error {
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, connect.PrivateRunManifestName), raw, 0o600)
}

// readManifest returns the manifest in a directory, or nil if the file is missing or damaged. The hashes of the lines
// also contain the manifest. So without the file, a later run still detects that flags have changed, but cannot say
// which ones.
func readManifest(dir string) (*runManifest, error) {
	name := filepath.Join(dir, connect.PrivateRunManifestName)
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	a := new(runManifest)
	if json.Unmarshal(raw, a) != nil || a.JobListSource == "" || a.JobFields == nil {
		return nil, nil
	}
	return a, nil
}

// jobListSourceArguments returns the arguments that name the source of the list.
func (a *runManifest) jobListSourceArguments() string {
	if strings.HasPrefix(a.JobListSource, "--") {
		return a.JobListSource
	}
	return "--arg-file or :::"
}

// describeChanges returns one text for each difference between this manifest and that of a later run. Each text names
// the flag.
func (a *runManifest) describeChanges(laterManifest *runManifest) (changes []string) {
	if a.JobListSource != laterManifest.JobListSource {
		changes = append(changes, fmt.Sprintf("the first run took its jobs from %s, this run takes them from %s",
			a.jobListSourceArguments(), laterManifest.jobListSourceArguments()))
	}
	if was, is := cli.QuoteArgv(a.CommandTemplate), cli.QuoteArgv(laterManifest.CommandTemplate); was != is &&
		a.JobListSource == laterManifest.JobListSource {
		changes = append(changes, fmt.Sprintf("the program was %q, now it is %q", truncateToLine(was), truncateToLine(is)))
	}
	for _, f := range queue.SpecFields() {
		was, is := a.JobFields[f.Name], laterManifest.JobFields[f.Name]
		if bytes.Equal(was, is) {
			continue
		}
		flag := "--" + input.FieldFlagNames(f)[0]
		if f.Kind == queue.KindMap {
			changes = append(changes, describeRepeatedFlagChanges(flag, was, is)...)
			continue
		}
		changes = append(changes, describeFlagChange(flag, formatFlagValue(was), formatFlagValue(is)))
	}
	return changes
}

// describeRepeatedFlagChanges describes how the values of a flag that can be repeated, such as --env NAME=VALUE, have
// changed. It prints only the NAMEs, because the values may be secret.
func describeRepeatedFlagChanges(flag string, oldJSON, newJSON json.RawMessage) (changes []string) {
	before, now := map[string]string{}, map[string]string{}
	json.Unmarshal(oldJSON, &before) // the map stays empty if the value is missing or is not a map
	json.Unmarshal(newJSON, &now)
	all := maps.Clone(before)
	maps.Copy(all, now)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, had := before[name]
		value, has := now[name]
		change := "has changed"
		switch {
		case !has:
			change = "is missing"
		case !had:
			change = "is new"
		case old == value:
			continue
		}
		changes = append(changes, flag+" "+name+" "+change)
	}
	return changes
}

// describeFlagChange describes how the value of one flag has changed.
func describeFlagChange(flag, oldValue, newValue string) string {
	switch {
	case oldValue == "":
		return fmt.Sprintf("%s was not given, now it is %s", flag, newValue)
	case newValue == "":
		return fmt.Sprintf("%s was %s, now it is missing", flag, oldValue)
	}
	return fmt.Sprintf("%s was %s, now it is %s", flag, oldValue, newValue)
}

// truncateToLine returns a text as one line of at most 60 columns.
func truncateToLine(text string) string { return termtext.Truncate(termtext.OneLine(text), 60) }

// formatFlagValue formats a value in the syntax of a flag.
func formatFlagValue(raw json.RawMessage) string {
	if text := ""; json.Unmarshal(raw, &text) == nil {
		return queue.QuoteShellWord(truncateToLine(text))
	}
	return strings.Trim(termtext.Truncate(string(raw), 60), "[]")
}
