package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
)

// These constants limit the results and waits of tools, and name some of their parameters.
const (
	defaultListLimit        = 20          // default number of jobs in a page
	maxListLimit            = 200         // maximum number of jobs in a page
	maxJobIDsPerCall        = 100         // maximum number of job ids in one call
	defaultOutputLines      = 40          // default number of lines of each stream
	maxOutputBytes          = 32 << 10    // maximum number of bytes of each stream
	maxAbbreviatedTextChars = 300         // maximum number of characters of a command or an error
	defaultJobWait          = time.Minute // default time to wait for jobs
	maxJobWait              = time.Hour   // maximum time to wait for jobs
	waitTimeParamName       = "wait"      // parameter of run_and_wait: time to wait
	fullJobsParamName       = "full"      // parameter of tools that abbreviate jobs: do not abbreviate
	userParamName           = "user"      // parameter that selects jobs of other users
)

// tool is one row of the table of tools that agents can call. Most tools call one API method. The file descriptions.txt
// describes the tools.
type tool struct {
	name              string
	apiMethod         string         // API method whose parameters the tool has
	omittedParams     []string       // parameters of the method that the tool does not have
	extraParamSchemas map[string]any // schemas of further parameters of the tool
	// paramBounds contains bounds of parameters that are stricter than the bounds in the method's schema.
	paramBounds    map[string]any
	makesChanges   bool // the tool changes something, and the changes cannot be undone
	runsCommands   bool // the tool can run any command, with effects outside the queue
	waitsForJobEnd bool // the tool replies only when jobs have ended
	// extraResultSchemas contains the schemas of members that the tool adds to the result of the method.
	extraResultSchemas map[string]any
	resultAPIMethod    string // method whose result the tool returns; "" means apiMethod
	jobListMember      string // result member with a list of jobs, which may be abbreviated; "" if none
	handler            func(s *toolCall, ctx context.Context, a toolArguments) (any, error)
}

// toolArguments contains the arguments of one call of a tool.
type toolArguments struct {
	methodParams     json.RawMessage // parameters of the method
	wantsFullJobs    bool            // do not abbreviate jobs
	jobWaitTime      time.Duration   // how long run_and_wait waits for the job
	noRetryByDefault bool            // do not retry the job by default; parameters may request retries
}

func typeSchema(jsonType string) map[string]any { return map[string]any{"type": jsonType} }

// outputMemberSchemas contains the schemas of the result members that describe the output of a job.
var outputMemberSchemas = map[string]any{"stdout": typeSchema("string"), "stderr": typeSchema("string"),
	"cut": typeSchema("boolean")}

// endedJobMemberSchemas contains the schemas of the members that run_and_wait adds to a job.
var endedJobMemberSchemas = map[string]any{
	"stdout": typeSchema("string"), "stderr": typeSchema("string"), "cut": typeSchema("boolean"),
	"timed_out": typeSchema("boolean"), "next": typeSchema("string"),
}

// fullParam contains the schema of the parameter "full".
var fullParam = map[string]any{fullJobsParamName: map[string]any{"type": "boolean",
	"description": "return complete objects instead of abbreviated ones"}}

// tools lists the tools that agents can call.
var tools = []tool{
	{name: "list", apiMethod: "list", jobListMember: "jobs",
		extraParamSchemas: fullParam,
		paramBounds:       map[string]any{"limit": map[string]any{"maximum": maxListLimit}}, handler: (*toolCall).listJobs},
	{name: "show", apiMethod: "show", extraParamSchemas: fullParam,
		extraResultSchemas: map[string]any{"attempts_in_history": typeSchema("integer")}, handler: (*toolCall).showJob},
	{name: "logs", apiMethod: "logs", omittedParams: []string{"all", "follow", "ends"},
		extraResultSchemas: outputMemberSchemas, handler: (*toolCall).readJobOutput},
	{name: "wait", apiMethod: "wait", jobListMember: "ended",
		extraParamSchemas: fullParam,
		waitsForJobEnd:    true, paramBounds: map[string]any{"ids": idListBounds, "timeout": waitTimeBounds},
		handler: (*toolCall).waitForJobEnds},
	{name: "why", apiMethod: "why", handler: (*toolCall).explainWaitingJob},
	{name: "enqueue", apiMethod: "enqueue", makesChanges: true, runsCommands: true,
		handler: (*toolCall).enqueueJob},
	{name: "run_and_wait", apiMethod: "enqueue", makesChanges: true, runsCommands: true,
		waitsForJobEnd:  true,
		resultAPIMethod: "show", extraResultSchemas: endedJobMemberSchemas,
		extraParamSchemas: map[string]any{fullJobsParamName: fullParam[fullJobsParamName],
			waitTimeParamName: waitTimeSchema("how long to wait for the job (default 1m, at most 1h); the job " +
				"continues after that")}, handler: (*toolCall).runJobAndWait},
	{name: "cancel", apiMethod: "cancel", makesChanges: true,
		paramBounds: map[string]any{"ids": idListBounds},
		handler: selectedJobsHandler(control.API.CancelJobs,
			func(p *control.JobSelection) *control.JobSelection { return p })},
	{name: "retry", apiMethod: "retry", makesChanges: true, runsCommands: true,
		paramBounds: map[string]any{"ids": idListBounds}, handler: selectedJobsHandler(control.API.RetryJobs,
			func(p *control.JobRetryParams) *control.JobSelection { return &p.JobSelection })},
}

// parseArguments decodes the arguments of a call, which must be valid JSON. It accepts an argument that selects
// jobs of other users only if includeAllUsers is true.
func (t *tool) parseArguments(argumentsJSON json.RawMessage, includeAllUsers bool) (a toolArguments, err error) {
	lacks := t.hiddenParams(includeAllUsers)
	a.jobWaitTime = defaultJobWait
	rest := []byte{'{'}
	err = queue.EachMember(argumentsJSON, func(name string, value json.RawMessage) error {
		switch {
		case slices.Contains(lacks, name):
			return queue.InvalidFieldError(name, "unknown parameter of this tool")
		case t.extraParamSchemas[name] == nil:
			if len(rest) > 1 {
				rest = append(rest, ',')
			}
			key, err := json.Marshal(name)
			rest = append(append(append(rest, key...), ':'), value...)
			return err
		case name == fullJobsParamName:
			if err := json.Unmarshal(value, &a.wantsFullJobs); err != nil {
				return queue.InvalidFieldError(name, "must be true or false")
			}
			return nil
		}
		var d control.Duration
		if err := d.UnmarshalJSON(value); err != nil {
			return queue.InvalidFieldError(name, "must be a duration, like 90 (seconds) or \"5m\"")
		}
		a.jobWaitTime = time.Duration(d)
		return checkWaitTime(name, a.jobWaitTime)
	})
	a.methodParams = append(rest, '}')
	return a, err
}

// checkWaitTime returns an error if the duration of a wait is not positive or is too long.
func checkWaitTime(paramName string, d time.Duration) error {
	if d <= 0 || d > maxJobWait {
		return queue.InvalidFieldError(paramName, "must be more than 0 and at most 1h; call the tool again to wait longer")
	}
	return nil
}

// listJobs implements the tool list. The methods below, up to runJobAndWait, implement the other tools.
func (s *toolCall) listJobs(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.JobListParams](a.methodParams)
	if err != nil {
		return nil, err
	}
	p.PageSize = cmp.Or(p.PageSize, defaultListLimit)
	if p.PageSize > maxListLimit {
		return nil, queue.InvalidFieldError("limit",
			`too large; the maximum is %d; for more jobs, pass the field "next" of the `+
				`result as the parameter "cursor"`, maxListLimit)
	}
	if !s.options.IncludeAllUsers {
		if p.Submitter, err = s.callerUserName(ctx); err != nil {
			return nil, err
		}
	}
	page, err := s.api.ListJobs(ctx, p)
	if err != nil || a.wantsFullJobs {
		return page, err
	}
	jobs := []map[string]any{}
	for i := range page.Jobs {
		jobs = append(jobs, s.abbreviateJob(&page.Jobs[i]))
	}
	return map[string]any{"jobs": jobs, "next": page.NextCursor}, nil
}

func (s *toolCall) showJob(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.JobShowParams](a.methodParams)
	if err == nil {
		err = s.checkCallerOwnsJobs(ctx, string(p.ID))
	}
	if err != nil {
		return nil, err
	}
	d, err := s.api.ShowJob(ctx, p)
	if err != nil || a.wantsFullJobs {
		return d, err
	}
	answer := s.abbreviateJob(&d.Job)
	tty, _ := d.Spec["tty"].(bool)
	setAbbreviatedMember(answer, "output", readableOutput(d.StdoutTail, tty))
	setAbbreviatedMember(answer, "stderr", readableOutput(d.StderrTail, tty))
	setAbbreviatedMember(answer, "result", d.Result)
	answer["attempts_in_history"] = d.TotalAttempts
	return answer, nil
}

func (s *toolCall) explainWaitingJob(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.ExplainWaitingParams](a.methodParams)
	if err == nil {
		err = s.checkCallerOwnsJobs(ctx, string(p.ID))
	}
	if err != nil {
		return nil, err
	}
	return s.api.ExplainWaiting(ctx, p)
}

func (s *toolCall) readJobOutput(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.JobOutputParams](a.methodParams)
	if err == nil {
		err = s.checkCallerOwnsJobs(ctx, string(p.ID))
	}
	if err != nil {
		return nil, err
	}
	return s.readLastOutputLines(ctx, p)
}

// readLastOutputLines returns the last lines of stdout and stderr of a job. Where bytes are missing, it inserts a line
// that says so.
func (s *toolCall) readLastOutputLines(ctx context.Context, p control.JobOutputParams) (map[string]any, error) {
	if p.LastLineCount == nil {
		p.LastLineCount = new(defaultOutputLines)
	}
	streams, cut, damaged, tty := map[string][]byte{}, false, int64(0), false
	end, err := s.api.StreamOutput(ctx, p, func(piece control.OutputPiece) error {
		names := []string{piece.Stream}
		if piece.Stream == "" {
			names = []string{"stdout", "stderr"}
		}
		for _, name := range names {
			text := piece.AppendTo(streams[name])
			if len(text) > maxOutputBytes {
				text, cut = append(text[:0], output.TextTail(text, maxOutputBytes)...), true
			}
			streams[name] = text
		}
		tty = piece.FromTerminal
		cut = cut || piece.DroppedBytes > 0
		if piece.Damage != nil {
			damaged += piece.Damage.ByteCount
		}
		return nil
	})
	answer := map[string]any{"state": end.FinalJobState}
	for name, text := range streams {
		setAbbreviatedMember(answer, name, readableOutput(string(text), tty))
	}
	if cut {
		answer["cut"] = true
	}
	if damaged > 0 {
		answer["damaged_bytes"] = damaged
	}
	return answer, err
}

// readableOutput returns output as valid UTF-8. It removes control sequences if the output comes from a
// terminal.
func readableOutput(output string, isTerminalOutput bool) string {
	if isTerminalOutput {
		return termtext.RenderText(output, false)
	}
	return strings.ToValidUTF8(output, "\ufffd")
}

func (s *toolCall) waitForJobEnds(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.JobWaitParams](a.methodParams)
	if err == nil {
		p.MaxWait = cmp.Or(p.MaxWait, control.Duration(defaultJobWait))
		err = checkWaitTime("timeout", time.Duration(p.MaxWait))
	}
	ids := p.AllIDs()
	if err == nil && len(ids) > maxJobIDsPerCall {
		err = queue.InvalidFieldError("ids", "too many jobs (%d); the maximum is %d", len(ids), maxJobIDsPerCall)
	}
	if err == nil {
		err = s.checkCallerOwnsJobs(ctx, ids...)
	}
	if err != nil {
		return nil, err
	}
	ended := []any{}
	stop, total := func() {}, float64(len(ids))
	if len(ids) == 1 {
		stop, total = s.reportJobProgress(ctx, control.JobID(ids[0]), nil), 100
	}
	left, err := s.waitForJobsOrInputEnd(ctx, p, func(e control.JobEndNotice) error {
		stop()
		defer func() {
			done := total / float64(len(ids)) * float64(len(ended))
			s.progress.sendProgress(ctx, done, total, fmt.Sprintf("job %s is %s", e.Job.ID, e.Job.State))
		}()
		if a.wantsFullJobs {
			ended = append(ended, e.Job)
		} else {
			ended = append(ended, s.abbreviateJob(&e.Job))
		}
		return nil
	})
	stop()
	return map[string]any{"ended": ended, "open": left.UnfinishedJobIDs, "timed_out": left.TimedOut}, err
}

// waitForJobsOrInputEnd waits for jobs like control.API.Wait. If the client closes its input during the wait,
// waitForJobsOrInputEnd returns within maxJobWaitAfterInputEnd, as if the timeout in p had expired.
func (s *toolCall) waitForJobsOrInputEnd(
	ctx context.Context, p control.JobWaitParams, handleNotice func(control.JobEndNotice) error) (control.JobWaitResult,
	error) {
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer context.AfterFunc(s.jobWaitContext, giveUp)()
	open := p.AllIDs()
	left, err := s.api.WaitForJobs(waiting, p, func(e control.JobEndNotice) error {
		open = slices.DeleteFunc(open, func(id string) bool { return id == e.Job.ID })
		return handleNotice(e)
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return control.JobWaitResult{UnfinishedJobIDs: open, TimedOut: true}, nil
	}
	return left, err
}

func (s *toolCall) enqueueJob(ctx context.Context, a toolArguments) (any, error) {
	p, err := control.ParseParams[control.EnqueueParams](a.methodParams)
	if err == nil && a.noRetryByDefault && p.JobSpec.MaxRetries == nil {
		p.JobSpec.MaxRetries = new(int64) // the same default as in queuectl run
	}
	if err == nil {
		err = s.options.AddCallerContext(&p.JobSpec)
	}
	if err != nil {
		return nil, err
	}
	return s.api.Enqueue(ctx, p)
}

func (s *toolCall) runJobAndWait(ctx context.Context, a toolArguments) (any, error) {
	a.noRetryByDefault = true
	since := s.lastEventSeq(ctx)
	got, err := s.enqueueJob(ctx, a)
	if err != nil {
		return nil, err
	}
	id := control.JobID(got.(control.EnqueueResult).JobID)
	stop := s.reportJobProgress(ctx, id, since)
	left, err := s.waitForJobsOrInputEnd(ctx, control.JobWaitParams{ID: id, MaxWait: control.Duration(a.jobWaitTime)},
		func(e control.JobEndNotice) error {
			stop()
			s.progress.sendProgress(ctx, 100, 100, fmt.Sprintf("job %s is %s", id, e.Job.State))
			return nil
		})
	stop()
	if err != nil {
		return nil, enqueuedJobError(id, err, "job %[1]s was enqueued, but waiting failed: %[2]w; to wait, use the tool wait")
	}
	d, err := s.api.ShowJob(ctx, control.JobShowParams{ID: id})
	if err != nil {
		return nil, enqueuedJobError(id, err, "job %[1]s was enqueued, but its details cannot be read: %[2]w; to read the "+
			"details of job %[1]s, use the tool show")
	}
	if a.wantsFullJobs {
		return d, nil
	}
	answer := s.abbreviateJob(&d.Job)
	if left.TimedOut {
		answer["timed_out"] = true
		answer["next"] = fmt.Sprintf("job %s has not finished; use the tool wait to wait for it, or the tool why to learn "+
			"what it is waiting for", id)
	}
	if d.AttemptCount == 0 {
		return answer, nil
	}
	output, err := s.readLastOutputLines(ctx, control.JobOutputParams{ID: id})
	if err != nil {
		return nil, fmt.Errorf("job %s is %s, but its output cannot be read: %w", id, d.State, err)
	}
	delete(output, "state")
	maps.Copy(answer, output)
	return answer, nil
}

// selectedJobsHandler returns the handler of a tool that calls a method for several jobs, but only for jobs of the
// caller. selectionOf returns the field of the method's parameters that selects the jobs.
func selectedJobsHandler[P any](method func(control.API, context.Context, P) (control.BulkResult, error),
	selectionOf func(*P) *control.JobSelection) func(s *toolCall, ctx context.Context, a toolArguments) (any, error) {
	return func(s *toolCall, ctx context.Context, a toolArguments) (any, error) {
		p, err := control.ParseParams[P](a.methodParams)
		if err == nil {
			err = s.limitToCallerJobs(ctx, selectionOf(&p))
		}
		if err != nil {
			return nil, err
		}
		return method(s.api, ctx, p)
	}
}

// limitToCallerJobs makes a selection select only jobs of the caller, unless ServerOptions.IncludeAllUsers is set. It
// returns an error if the selection contains too many ids.
func (s *toolCall) limitToCallerJobs(ctx context.Context, selection *control.JobSelection) (err error) {
	ids := selection.AllIDs()
	if len(ids) > maxJobIDsPerCall {
		return queue.InvalidFieldError("ids", "too many jobs (%d); use at most %d ids, or select jobs by other parameters",
			len(ids), maxJobIDsPerCall)
	}
	if len(ids) > 0 || s.options.IncludeAllUsers {
		return s.checkCallerOwnsJobs(ctx, ids...)
	}
	selection.Submitter, err = s.callerUserName(ctx)
	return err
}

// abbreviatedMembers lists the members of an abbreviated job. Members without a value are left out.
var abbreviatedMembers = []string{"id", "state", "reason", "queue", "command", "argv", "labels", "attempts",
	"max_attempts", "exit_code", "signal", "error", "created_at", "run_at", "next_retry_at", "started_at",
	"finished_at", "run_time_ms", "depends_on", "waits_for", "progress", "paused_at", "hidden"}

// abbreviateJob returns a job in abbreviated form.
func (s *toolCall) abbreviateJob(j *control.Job) map[string]any {
	raw, err := json.Marshal(j)
	var allMembers map[string]any
	if err != nil || json.Unmarshal(raw, &allMembers) != nil {
		return map[string]any{"id": j.ID, "state": j.State}
	}
	short := map[string]any{}
	for _, name := range abbreviatedMembers {
		setAbbreviatedMember(short, name, allMembers[name])
	}
	if s.options.IncludeAllUsers {
		setAbbreviatedMember(short, "user", j.User)
		setAbbreviatedMember(short, "submitter", j.Submitter)
	}
	if j.AttemptCount > 0 || j.RunAt <= j.CreatedAt {
		delete(short, "run_at")
	}
	return short
}

// setAbbreviatedMember adds a member to an object unless the value is empty. It truncates long commands, long errors
// and the entries of lists.
func setAbbreviatedMember(object map[string]any, name string, value any) {
	switch v := value.(type) {
	case nil:
		return
	case string:
		if v == "" {
			return
		}
		if name == "command" || name == "error" {
			value = truncateText(v)
		}
	case map[string]any:
		if len(v) == 0 {
			return
		}
	case []any:
		if len(v) == 0 {
			return
		}
		for i, one := range v {
			if text, ok := one.(string); ok {
				v[i] = truncateText(text)
			}
		}
	case json.RawMessage:
		if len(v) == 0 || string(v) == "null" {
			return
		}
	}
	object[name] = value
}

// truncateText shortens a text to maxAbbreviatedTextChars characters.
func truncateText(text string) string {
	if runes := []rune(text); len(runes) > maxAbbreviatedTextChars {
		return string(runes[:maxAbbreviatedTextChars]) + "…"
	}
	return text
}
