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

// retryDeadJobs makes all dead jobs run again.
func (p *privateJobs) retryDeadJobs(ctx context.Context) error {
	for cursor := ""; ; {
		v, err := p.client.RetryDeadJobs(ctx, control.DeadJobRetryParams{AllDeadJobs: true, Cursor: cursor})
		if err != nil || v.NextCursor == nil {
			return err
		}
		cursor = *v.NextCursor
	}
}

// loadStoredJobLines reads from the queue which lines earlier runs have stored. It sets storedJobIDByLine and
// isResumed.
func (p *privateJobs) loadStoredJobLines(ctx context.Context) error {
	for page, err := range cli.JobPages(ctx, p.client, control.JobListParams{}) {
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			number, _, ours := strings.Cut(j.ID, "-")
			n, err := strconv.Atoi(number)
			if err != nil || !ours {
				return queue.Errorf(queue.CodeWrongState,
					"the queue in %s contains jobs that were not added by run --private, such as %s; choose another "+
						"directory with --dir", p.ServiceDir, j.ID)
			}
			p.storedJobIDByLine[n] = j.ID
		}
	}
	p.isResumed = len(p.storedJobIDByLine) > 0
	return nil
}

// checkAndSaveManifest saves the manifest in the run's directory if this is the first run. In a later run, it compares
// the manifest with the saved one, and returns an error if the flags differ.
func (p *privateJobs) checkAndSaveManifest() error {
	if !p.isResumed {
		return p.manifest.save(p.ServiceDir)
	}
	was, err := readManifest(p.ServiceDir)
	if err != nil || was == nil {
		return err
	}
	list := was.describeChanges(p.manifest)
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxListedDifferences; more > 0 {
		list = append(list[:maxListedDifferences], fmt.Sprintf("%d more differences", more))
	}
	return queue.Errorf(queue.CodeWrongState, "%s contains a run that was started with other flags: %s; use the same "+
		"flags as before, or start a new run with another --dir", p.ServiceDir, strings.Join(list, "; "))
}

// storeAddedLines stores a job for each line of the list that no earlier run has stored. It returns an error if an
// earlier run has stored a line that has changed since then, or that is now missing.
func (p *privateJobs) storeAddedLines() error {
	err := p.EachJob(p.jobListReader, p.storeJobOfLine)
	if err == nil && p.upload.ReadJobCount == 0 && !p.isResumed {
		p.PrintNoJobs(&p.Output)
	}
	// storeJobOfLine has removed the lines of this list from storedJobIDByLine. So storedJobIDByLine now contains only
	// lines that this list lacks.
	for _, n := range slices.Sorted(maps.Keys(p.storedJobIDByLine)) {
		if n > p.lastReadLineNumber && len(p.changedLineDescriptions) < maxListedDifferences {
			p.changedLineDescriptions = append(p.changedLineDescriptions,
				fmt.Sprintf("line %d with the command %s is missing (job %s)", n,
					p.storedJobCommandText(p.storedJobIDByLine[n]), p.storedJobIDByLine[n]))
		}
	}
	switch {
	case err != nil:
	case len(p.changedLineDescriptions) > 0:
		err = queue.Errorf(queue.CodeWrongState, "%s contains a run of another list of jobs: %s; restore the list, or "+
			"start a new run with another --dir", p.ServiceDir, strings.Join(p.changedLineDescriptions, "; "))
	case p.addedLineCount > 0:
		err = queue.Errorf(queue.CodeWrongState, "the list has %s more than before, from line %d on; run these too with "+
			"--add-new, or remove them from the list", present.JobCountText(p.addedLineCount), p.firstAddedLineNumber)
	}
	if err != nil || p.upload.ReadJobCount > 0 {
		return p.upload.CommitOrAbort(err)
	}
	return nil
}

// maxListedDifferences is the highest number of differences that an error lists.
const maxListedDifferences = 5

// storedJobCommandText returns the quoted command of a stored job, for an error.
func (p *privateJobs) storedJobCommandText(id string) string {
	j, err := cli.ShowJob(p.storeCtx, p.client, id)
	if err != nil {
		return "(unknown)"
	}
	return fmt.Sprintf("%q", truncateToLine(present.JobTitle(&j.Job)))
}

// changedLineText describes how a line differs from the job that an earlier run stored for the same line number.
// storedID is the id of that job.
func (p *privateJobs) changedLineText(lineNumber int, storedID string, newSpec *queue.Spec) string {
	stored := p.storedJobCommandText(storedID)
	current := fmt.Sprintf("%q", truncateToLine(queue.CommandText(queue.ValueOr(newSpec.Command, ""), newSpec.Argv)))
	if current == stored {
		return fmt.Sprintf("line %d still has the command %s, but other fields of the job differ", lineNumber, stored)
	}
	return fmt.Sprintf("the command of line %d was %s, now it is %s", lineNumber, stored, current)
}

// replaceParentIDs replaces the ids in depends_on. A line refers to a parent by the id that the parent's line declares.
// In the queue, the parent's job has another id, because the ids of a private run begin with the line number.
func (p *privateJobs) replaceParentIDs(spec *queue.Spec) error {
	// All lines share the slice from the flags, so change a copy of it.
	spec.DependsOn = slices.Clone(spec.DependsOn)
	for i, text := range spec.DependsOn {
		d, err := queue.ParseDependency(text)
		if err != nil {
			return err
		}
		id, known := p.jobIDsByDeclaredID[d.ParentID]
		if !known {
			return queue.InvalidFieldError("depends_on",
				"no line above this one has the job id %q; in a private run, a job can only "+
					"depend on jobs above it in the list", queue.ClipForMessage(d.ParentID))
		}
		spec.DependsOn[i] = id + strings.TrimPrefix(text, d.ParentID)
	}
	return nil
}

// storeJobOfLine stores the job of one line of the list, unless an earlier run has stored it.
func (p *privateJobs) storeJobOfLine(lineText []byte, lineNumber int) error {
	// A JSON array can contain several jobs on one line of the file, but each job needs a different number.
	p.lastReadLineNumber = max(lineNumber, p.lastReadLineNumber+1)
	spec, err := p.JobSpec(&p.commonSpec, lineText)
	if err != nil {
		return fault.WithLineNumber(err, lineNumber)
	}
	sum := sha256.New()
	sum.Write(p.lineHashPrefix) // writing to a hash never fails
	sum.Write(lineText)
	id := strconv.Itoa(p.lastReadLineNumber) + "-" + hex.EncodeToString(sum.Sum(nil)[:5])
	if spec.ID != nil {
		id += "-" + *spec.ID
		if p.jobIDsByDeclaredID == nil {
			p.jobIDsByDeclaredID = map[string]string{}
		}
		p.jobIDsByDeclaredID[*spec.ID] = id
	}
	if err := p.replaceParentIDs(spec); err != nil {
		return fault.WithLineNumber(err, lineNumber)
	}
	was, stored := p.storedJobIDByLine[p.lastReadLineNumber]
	delete(p.storedJobIDByLine, p.lastReadLineNumber)
	switch {
	case stored && was != id && len(p.changedLineDescriptions) < maxListedDifferences:
		p.changedLineDescriptions = append(p.changedLineDescriptions, p.changedLineText(lineNumber, was, spec))
		return nil
	case stored || len(p.changedLineDescriptions) > 0:
		return nil
	case p.isResumed && !p.AddNewLines:
		if p.addedLineCount++; p.addedLineCount == 1 {
			p.firstAddedLineNumber = lineNumber
		}
		return nil
	}
	spec.ID = &id
	encoded, err := json.Marshal(spec)
	if err != nil {
		return fault.WithLineNumber(err, lineNumber)
	}
	return p.upload.AddJob(encoded, lineNumber)
}
