package admin

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// jobsTableName is the name of the TOML table that contains one inner table for each job, named after the job's id.
// Fields outside this table apply to all jobs.
const jobsTableName = "jobs"

// EachTOMLJob calls handleJob(raw, line) for every job in a TOML file, with the job as JSON. line is the
// number of the job's first line, or 0 if it is unknown. Jobs with a known line are handled in the order of
// the file. fileName is the name of the file, for errors.
func EachTOMLJob(fileName string, in io.Reader, handleJob func(raw []byte, line int) error) error {
	text, err := io.ReadAll(io.LimitReader(in, control.MaxLineBytes+1))
	if err != nil {
		return err
	}
	if len(text) > control.MaxLineBytes {
		return queue.Errorf(queue.CodeTooLarge, "%s is longer than %d bytes; write the jobs as JSON lines instead", fileName,
			control.MaxLineBytes)
	}
	file, err := tomlfile.ParseTables(fileName, text)
	if err != nil {
		return err
	}
	jobs, is := file[jobsTableName].(map[string]any)
	if !is {
		return queue.Errorf(queue.CodeInvalid, "%s contains no jobs; write each job as a table [jobs.ID] "+
			"with its fields below", fileName)
	}
	delete(file, jobsTableName)
	for field := range file {
		if field == "id" || field == "depends_on" {
			return queue.InvalidFieldError(field,
				"this field cannot be set for all jobs; move it into the table of one job, [jobs.ID]")
		}
	}
	lines := jobTableLineNumbers(string(text))
	inFileOrder := func(a, b string) int { return cmp.Or(lines[a]-lines[b], strings.Compare(a, b)) }
	for _, id := range slices.SortedFunc(maps.Keys(jobs), inFileOrder) {
		jobFields, is := jobs[id].(map[string]any)
		if !is {
			return fault.WithLineNumber(queue.Errorf(queue.CodeInvalid,
				"jobs.%s is not a table; write [jobs.%[1]s] with the fields of the job below it", queue.ClipForMessage(id)),
				lines[id])
		}
		fields := maps.Clone(file)
		maps.Copy(fields, jobFields)
		if _, given := fields["id"]; given {
			return fault.WithLineNumber(queue.InvalidFieldError("id",
				"the job's id is the name of its table; remove this field"),
				lines[id])
		}
		fields["id"] = id
		if parentID, isText := fields["depends_on"].(string); isText {
			fields["depends_on"] = []string{parentID}
		}
		raw, err := json.Marshal(fields)
		if err != nil {
			return fault.WithLineNumber(queue.Errorf(queue.CodeInvalid, "jobs.%s: %v", queue.ClipForMessage(id), err), lines[id])
		}
		if err := handleJob(raw, lines[id]); err != nil {
			return err
		}
	}
	return nil
}

// jobTableLineNumbers maps the id of each job to the number of the line on which its table begins. It finds only
// tables with a header like [jobs.ID].
func jobTableLineNumbers(text string) map[string]int {
	lines, n := map[string]int{}, 0
	for line := range strings.Lines(text) {
		n++
		head, hasBracket := strings.CutPrefix(strings.TrimSpace(line), "[")
		head, _, ended := strings.Cut(head, "]")
		table, name, dotted := strings.Cut(head, ".")
		if hasBracket && ended && dotted && strings.TrimSpace(table) == jobsTableName {
			lines[strings.Trim(name, " \t\"'")] = n
		}
	}
	return lines
}
