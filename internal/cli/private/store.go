package private

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// retryDead makes all dead jobs run again.
func (p *privateJobs) retryDead(ctx context.Context) error {
	for cursor := ""; ; {
		v, err := p.client.DLQRetry(ctx, control.DLQRetry{All: true, Cursor: cursor})
		if err != nil || v.Next == nil {
			return err
		}
		cursor = *v.Next
	}
}

// loadStored reads from the queue which lines earlier runs have stored. It sets storedLines and isResumed.
func (p *privateJobs) loadStored(ctx context.Context) error {
	for jobs, err := range cli.JobPages(ctx, p.client, control.List{}) {
		if err != nil {
			return err
		}
		for _, j := range jobs {
			number, _, ours := strings.Cut(j.ID, "-")
			n, err := strconv.Atoi(number)
			if err != nil || !ours {
				return queue.Errorf(queue.CodeWrongState,
					"the queue in %s contains jobs that were not added by run --private, such as %s; choose another "+
						"directory with --dir", p.app.Dir, j.ID)
			}
			p.storedLines[n] = j.ID
		}
	}
	p.isResumed = len(p.storedLines) > 0
	return nil
}

// checkAndSaveManifest stores the manifest for later runs. If an earlier run stored a manifest with different
// flags, checkAndSaveManifest returns an error.
func (p *privateJobs) checkAndSaveManifest() error {
	if !p.isResumed {
		return p.manifest.save(p.app.Dir)
	}
	was, err := readManifest(p.app.Dir)
	if err != nil || was == nil {
		return err
	}
	list := was.describeChanges(p.manifest)
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxListedChanges; more > 0 {
		list = append(list[:maxListedChanges], fmt.Sprintf("%d more differences", more))
	}
	return queue.Errorf(queue.CodeWrongState, "%s contains a run that was started with other flags: %s; use the same "+
		"flags as before, or start a new run with another --dir", p.app.Dir, strings.Join(list, "; "))
}

// storeNewLines stores a job for each line of the list of jobs that no earlier run has stored. It returns an error
// if a line has changed since then, or is missing now.
func (p *privateJobs) storeNewLines() error {
	err := p.EachJob(p.listReader, p.storeLine)
	if err == nil && p.upload.JobsRead == 0 && !p.isResumed {
		p.PrintNoJobs(&p.app.Output)
	}
	// storedLines now contains only lines that are missing in this list, because storeLine has removed the
	// others.
	for _, n := range slices.Sorted(maps.Keys(p.storedLines)) {
		if n > p.lastLine && len(p.changedLines) < maxListedChanges {
			p.changedLines = append(p.changedLines, fmt.Sprintf("line %d with the command %s is missing (job %s)", n,
				p.storedCommand(p.storedLines[n]), p.storedLines[n]))
		}
	}
	switch {
	case err != nil:
	case len(p.changedLines) > 0:
		err = queue.Errorf(queue.CodeWrongState, "%s contains a run of another list of jobs: %s; restore the list, or "+
			"start a new run with another --dir", p.app.Dir, strings.Join(p.changedLines, "; "))
	case p.newLineCount > 0:
		err = queue.Errorf(queue.CodeWrongState, "the list has %s more than before, from line %d on; run these too with "+
			"--add-new, or remove them from the list", present.JobsText(p.newLineCount), p.firstNewLine)
	}
	if err != nil || p.upload.JobsRead > 0 {
		return p.upload.CommitOrAbort(err)
	}
	return nil
}

// maxListedChanges is the highest number of differences that an error lists.
const maxListedChanges = 5

// storedCommand returns the quoted command of a stored job, for an error.
func (p *privateJobs) storedCommand(id string) string {
	j, err := p.client.Show(p.storeCtx, control.Show{ID: control.JobID(id)})
	if err != nil {
		return "(unknown)"
	}
	return fmt.Sprintf("%q", shortLine(present.JobTitle(&j.Job)))
}

// changedLineText describes how a line differs from the job that an earlier run stored for it. storedID is
// the id of that job.
func (p *privateJobs) changedLineText(line int, storedID string, newSpec *queue.Spec) string {
	stored := p.storedCommand(storedID)
	current := fmt.Sprintf("%q", shortLine(queue.CommandText(queue.ValueOr(newSpec.Command, ""), newSpec.Argv)))
	if current == stored {
		return fmt.Sprintf("line %d still has the command %s, but other fields of the job differ", line, stored)
	}
	return fmt.Sprintf("the command of line %d was %s, now it is %s", line, stored, current)
}

// replaceParentIDs replaces the ids in depends_on. In the list, a line refers to another one by the id that
// this line declares. In the queue, the jobs of these lines have other ids.
func (p *privateJobs) replaceParentIDs(spec *queue.Spec) error {
	// All lines share the slice from the flags, so change a copy of it.
	spec.DependsOn = slices.Clone(spec.DependsOn)
	for i, text := range spec.DependsOn {
		name, _, err := queue.ParseDependency(text)
		if err != nil {
			return err
		}
		id, known := p.idsByDeclaredID[name]
		if !known {
			return queue.Invalid("depends_on", "no line above this one has the job id %q; in a private run, a job can only "+
				"depend on jobs above it in the list", queue.Clip(name))
		}
		spec.DependsOn[i] = id + strings.TrimPrefix(text, name)
	}
	return nil
}

// storeLine stores the job of one line if no earlier run has stored it.
func (p *privateJobs) storeLine(raw []byte, line int) error {
	// In a JSON array, several jobs may be on one line of the file, but each needs its own number.
	p.lastLine = max(line, p.lastLine+1)
	spec, err := p.Spec(&p.commonSpec, raw)
	if err != nil {
		return fault.AtLine(err, line)
	}
	sum := sha256.New()
	sum.Write(p.hashPrefix) // writing to a hash never fails
	sum.Write(raw)
	id := strconv.Itoa(p.lastLine) + "-" + hex.EncodeToString(sum.Sum(nil)[:5])
	if spec.ID != nil {
		id += "-" + *spec.ID
		if p.idsByDeclaredID == nil {
			p.idsByDeclaredID = map[string]string{}
		}
		p.idsByDeclaredID[*spec.ID] = id
	}
	if err := p.replaceParentIDs(spec); err != nil {
		return fault.AtLine(err, line)
	}
	was, stored := p.storedLines[p.lastLine]
	delete(p.storedLines, p.lastLine)
	switch {
	case stored && was != id && len(p.changedLines) < maxListedChanges:
		p.changedLines = append(p.changedLines, p.changedLineText(line, was, spec))
		return nil
	case stored || len(p.changedLines) > 0:
		return nil
	case p.isResumed && !p.AddNew:
		if p.newLineCount++; p.newLineCount == 1 {
			p.firstNewLine = line
		}
		return nil
	}
	spec.ID = &id
	encoded, err := json.Marshal(spec)
	if err != nil {
		return fault.AtLine(err, line)
	}
	return p.upload.Add(encoded, line)
}
