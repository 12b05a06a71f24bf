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
	defaultListLimit   = 20          // default number of jobs in a page
	maxListLimit       = 200         // maximum number of jobs in a page
	maxCallJobIDs      = 100         // maximum number of job ids in one call
	defaultOutputLines = 40          // default number of lines of each stream
	maxOutputBytes     = 32 << 10    // maximum number of bytes of each stream
	maxShortTextChars  = 300         // maximum number of characters of a command or an error
	defaultWait        = time.Minute // default time to wait for jobs
	maxWait            = time.Hour   // maximum time to wait for jobs
	waitParam          = "wait"      // parameter of run_and_wait: time to wait
	fullParam          = "full"      // parameter of tools that abbreviate jobs: do not abbreviate
	userParam          = "user"      // parameter that selects jobs of other users
)

// tool is one row of the table of tools, which agents can call. Most tools call one API method.
// descriptions.txt describes the tools.
type tool struct {
	name        string
	method      string         // method whose parameters the tool has
	omitParams  []string       // parameters of the method that the tool does not have
	extraParams map[string]any // schemas of further parameters of the tool
	// bounds contains stricter bounds of parameters. They replace the bounds in the method's schema.
	bounds        map[string]any
	writes        bool // the tool changes something
	isDestructive bool // the changes cannot be undone
	runsCommands  bool // the tool can run any command, with effects outside the queue
	waitsForEnd   bool // the tool replies only when jobs have ended
	// extraResults contains the schemas of members that the tool adds to the result of the method.
	extraResults  map[string]any
	resultMethod  string // method whose result the tool returns; "" means the method in the field method
	jobListMember string // result member with a list of jobs, which may be abbreviated; "" if none
	call          func(s *toolCall, ctx context.Context, a arguments) (any, error)
}

// arguments contains the arguments of one call of a tool.
type arguments struct {
	raw           json.RawMessage // parameters of the method
	unabbreviated bool            // do not abbreviate jobs
	waitTime      time.Duration   // how long run_and_wait waits for the job
	noRetry       bool            // do not retry the job by default; parameters may request retries
}

func typeSchema(jsonType string) map[string]any { return map[string]any{"type": jsonType} }

// outputMemberSchemas contains the schemas of the result members that describe the output of a job.
var outputMemberSchemas = map[string]any{"stdout": typeSchema("string"), "stderr": typeSchema("string"),
	"cut": typeSchema("boolean")}

// endMemberSchemas contains the schemas of the members that run_and_wait adds to a job.
var endMemberSchemas = map[string]any{
	"stdout": typeSchema("string"), "stderr": typeSchema("string"), "cut": typeSchema("boolean"),
	"timed_out": typeSchema("boolean"), "next": typeSchema("string"),
}

// fullParamSchema is the schema of the parameter "full".
var fullParamSchema = map[string]any{"type": "boolean",
	"description": "return complete objects instead of abbreviated ones"}

// tools lists the tools that agents can call.
var tools = []tool{
	{name: "list", method: "list", jobListMember: "jobs", extraParams: map[string]any{fullParam: fullParamSchema},
		bounds: map[string]any{"limit": map[string]any{"maximum": maxListLimit}}, call: (*toolCall).list},
	{name: "show", method: "show", extraParams: map[string]any{fullParam: fullParamSchema},
		extraResults: map[string]any{"attempts_in_history": typeSchema("integer")}, call: (*toolCall).show},
	{name: "logs", method: "logs", omitParams: []string{"all", "follow", "ends"}, extraResults: outputMemberSchemas,
		call: (*toolCall).logs},
	{name: "wait", method: "wait", jobListMember: "ended", extraParams: map[string]any{fullParam: fullParamSchema},
		waitsForEnd: true, bounds: map[string]any{"ids": idListBounds, "timeout": waitBounds}, call: (*toolCall).wait},
	{name: "why", method: "why", call: (*toolCall).why},
	{name: "enqueue", method: "enqueue", writes: true, isDestructive: true, runsCommands: true, call: (*toolCall).enqueue},
	{name: "run_and_wait", method: "enqueue", writes: true, isDestructive: true, runsCommands: true, waitsForEnd: true,
		resultMethod: "show", extraResults: endMemberSchemas,
		extraParams: map[string]any{fullParam: fullParamSchema,
			waitParam: waitTimeSchema("how long to wait for the job (default 1m, at most 1h); the job continues after that")},
		call: (*toolCall).runAndWait},
	{name: "cancel", method: "cancel", writes: true, isDestructive: true, bounds: map[string]any{"ids": idListBounds},
		call: callOnSelection(api.Cancel, func(p *control.Selection) *control.Selection { return p })},
	{name: "retry", method: "retry", writes: true, isDestructive: true, runsCommands: true,
		bounds: map[string]any{"ids": idListBounds},
		call:   callOnSelection(api.Retry, func(p *control.Retry) *control.Selection { return &p.Selection })},
}

// parseArguments decodes the arguments of a call, which must be valid JSON. It accepts an argument that selects
// jobs of other users only if allUsers is true.
func (t *tool) parseArguments(raw json.RawMessage, allUsers bool) (a arguments, err error) {
	lacks := t.hiddenParams(allUsers)
	a.waitTime = defaultWait
	rest := []byte{'{'}
	err = queue.EachMember(raw, func(name string, value json.RawMessage) error {
		switch {
		case slices.Contains(lacks, name):
			return queue.Invalid(name, "unknown parameter of this tool")
		case t.extraParams[name] == nil:
			if len(rest) > 1 {
				rest = append(rest, ',')
			}
			key, err := json.Marshal(name)
			rest = append(append(append(rest, key...), ':'), value...)
			return err
		case name == fullParam:
			if err := json.Unmarshal(value, &a.unabbreviated); err != nil {
				return queue.Invalid(name, "must be true or false")
			}
			return nil
		}
		var d control.Duration
		if err := d.UnmarshalJSON(value); err != nil {
			return queue.Invalid(name, "must be a duration, like 90 (seconds) or \"5m\"")
		}
		a.waitTime = time.Duration(d)
		return checkWait(name, a.waitTime)
	})
	a.raw = append(rest, '}')
	return a, err
}

// checkWait returns an error if the duration of a wait is not positive or is too long.
func checkWait(name string, d time.Duration) error {
	if d <= 0 || d > maxWait {
		return queue.Invalid(name, "must be more than 0 and at most 1h; call the tool again to wait longer")
	}
	return nil
}

// list implements the tool list. The methods below, up to runAndWait, implement the other tools.
func (s *toolCall) list(ctx context.Context, a arguments) (any, error) {
	p, err := control.ParseParams[control.List](a.raw)
	if err != nil {
		return nil, err
	}
	p.Limit = cmp.Or(p.Limit, defaultListLimit)
	if p.Limit > maxListLimit {
		return nil, queue.Invalid("limit", `too large; the maximum is %d; for more jobs, pass the field "next" of the `+
			`result as the parameter "cursor"`, maxListLimit)
	}
	if !s.opt.AllUsers {
		if p.User, err = s.callerName(ctx); err != nil {
			return nil, err
		}
	}
	page, err := s.api.List(ctx, p)
	if err != nil || a.unabbreviated {
		return page, err
	}
	jobs := []map[string]any{}
	for i := range page.Jobs {
		jobs = append(jobs, s.abbreviateJob(&page.Jobs[i]))
	}
	return map[string]any{"jobs": jobs, "next": page.Next}, nil
}

// readOwnJobParams decodes parameters that name one job. jobIDOf returns the id of the job in these parameters.
// readOwnJobParams returns an error if another user has enqueued the job, unless Options.AllUsers is set.
func readOwnJobParams[P any](s *toolCall, ctx context.Context, a arguments, jobIDOf func(*P) control.JobID) (p P,
	err error) {
	if p, err = control.ParseParams[P](a.raw); err == nil {
		err = s.checkOwnJobs(ctx, string(jobIDOf(&p)))
	}
	return p, err
}

func (s *toolCall) show(ctx context.Context, a arguments) (any, error) {
	p, err := readOwnJobParams(s, ctx, a, func(p *control.Show) control.JobID { return p.ID })
	if err != nil {
		return nil, err
	}
	d, err := s.api.Show(ctx, p)
	if err != nil || a.unabbreviated {
		return d, err
	}
	answer := s.abbreviateJob(&d.Job)
	tty, _ := d.Spec["tty"].(bool)
	setMember(answer, "output", readableOutput(d.Output, tty))
	setMember(answer, "stderr", readableOutput(d.Stderr, tty))
	setMember(answer, "result", d.Result)
	answer["attempts_in_history"] = d.HistoryTotal
	return answer, nil
}

func (s *toolCall) why(ctx context.Context, a arguments) (any, error) {
	p, err := readOwnJobParams(s, ctx, a, func(p *control.WhyParams) control.JobID { return p.ID })
	if err != nil {
		return nil, err
	}
	return s.api.Why(ctx, p)
}

func (s *toolCall) logs(ctx context.Context, a arguments) (any, error) {
	p, err := readOwnJobParams(s, ctx, a, func(p *control.Logs) control.JobID { return p.ID })
	if err != nil {
		return nil, err
	}
	return s.readOutput(ctx, p)
}

// readOutput returns the last lines of stdout and stderr of a job. Where bytes are missing, it inserts a line
// that says so.
func (s *toolCall) readOutput(ctx context.Context, p control.Logs) (map[string]any, error) {
	if p.LastLines == nil {
		p.LastLines = new(defaultOutputLines)
	}
	streams, cut, damaged, tty := map[string][]byte{}, false, int64(0), false
	end, err := s.api.Logs(ctx, p, func(piece control.OutputPiece) error {
		names := []string{piece.Stream}
		if piece.Stream == "" {
			names = []string{"stdout", "stderr"}
		}
		for _, name := range names {
			text := piece.AppendTo(streams[name])
			if len(text) > maxOutputBytes {
				text, cut = append(text[:0], output.Tail(text, maxOutputBytes)...), true
			}
			streams[name] = text
		}
		tty = piece.TTY
		cut = cut || piece.DroppedBytes > 0
		if piece.Damage != nil {
			damaged += piece.Damage.Bytes
		}
		return nil
	})
	answer := map[string]any{"state": end.State}
	for name, text := range streams {
		setMember(answer, name, readableOutput(string(text), tty))
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
func readableOutput(output string, isTerminal bool) string {
	if isTerminal {
		return termtext.RenderText(output, false)
	}
	return strings.ToValidUTF8(output, "\ufffd")
}

func (s *toolCall) wait(ctx context.Context, a arguments) (any, error) {
	p, err := control.ParseParams[control.Wait](a.raw)
	if err == nil {
		p.Timeout = cmp.Or(p.Timeout, control.Duration(defaultWait))
		err = checkWait("timeout", time.Duration(p.Timeout))
	}
	ids := control.Selection{ID: p.ID, IDs: p.IDs}.AllIDs()
	if err == nil && len(ids) > maxCallJobIDs {
		err = queue.Invalid("ids", "too many jobs (%d); the maximum is %d", len(ids), maxCallJobIDs)
	}
	if err == nil {
		err = s.checkOwnJobs(ctx, ids...)
	}
	if err != nil {
		return nil, err
	}
	ended := []any{}
	stop, total := func() {}, float64(len(ids))
	if len(ids) == 1 {
		stop, total = s.followProgress(ctx, control.JobID(ids[0]), nil), 100
	}
	left, err := s.awaitJobs(ctx, p, func(e control.JobEndNotice) error {
		stop()
		defer func() {
			done := total / float64(len(ids)) * float64(len(ended))
			s.progress.report(ctx, done, total, fmt.Sprintf("job %s is %s", e.Job.ID, e.Job.State))
		}()
		if a.unabbreviated {
			ended = append(ended, e.Job)
		} else {
			ended = append(ended, s.abbreviateJob(&e.Job))
		}
		return nil
	})
	stop()
	return map[string]any{"ended": ended, "open": left.UnfinishedIDs, "timed_out": left.TimedOut}, err
}

// awaitJobs waits for jobs like control.API.Wait. If the client closes the input during the wait, it returns
// within lingerTime, as if the timeout in p had expired.
func (s *toolCall) awaitJobs(
	ctx context.Context, p control.Wait, handleNotice func(control.JobEndNotice) error) (control.WaitResult, error) {
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer context.AfterFunc(s.waitCtx, giveUp)()
	open := control.Selection{ID: p.ID, IDs: p.IDs}.AllIDs()
	left, err := s.api.Wait(waiting, p, func(e control.JobEndNotice) error {
		open = slices.DeleteFunc(open, func(id string) bool { return id == e.Job.ID })
		return handleNotice(e)
	})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return control.WaitResult{UnfinishedIDs: open, TimedOut: true}, nil
	}
	return left, err
}

func (s *toolCall) enqueue(ctx context.Context, a arguments) (any, error) {
	p, err := control.ParseParams[control.Enqueue](a.raw)
	if err == nil && a.noRetry && p.Spec.MaxRetries == nil {
		p.Spec.MaxRetries = new(int64) // the same default as in queuectl run
	}
	if err == nil {
		err = s.opt.AddContext(&p.Spec)
	}
	if err != nil {
		return nil, err
	}
	return s.api.Enqueue(ctx, p)
}

func (s *toolCall) runAndWait(ctx context.Context, a arguments) (any, error) {
	a.noRetry = true
	since := s.lastEventSeq(ctx)
	got, err := s.enqueue(ctx, a)
	if err != nil {
		return nil, err
	}
	id := control.JobID(got.(control.EnqueueResult).ID)
	stop := s.followProgress(ctx, id, since)
	left, err := s.awaitJobs(ctx, control.Wait{ID: id, Timeout: control.Duration(a.waitTime)},
		func(e control.JobEndNotice) error {
			stop()
			s.progress.report(ctx, 100, 100, fmt.Sprintf("job %s is %s", id, e.Job.State))
			return nil
		})
	stop()
	if err != nil {
		return nil, enqueuedJobError(id, err, "job %[1]s was enqueued, but waiting failed: %[2]w; to wait, use the tool wait")
	}
	d, err := s.api.Show(ctx, control.Show{ID: id})
	if err != nil {
		return nil, enqueuedJobError(id, err, "job %[1]s was enqueued, but its details cannot be read: %[2]w; to read the "+
			"details of job %[1]s, use the tool show")
	}
	if a.unabbreviated {
		return d, nil
	}
	answer := s.abbreviateJob(&d.Job)
	if left.TimedOut {
		answer["timed_out"] = true
		answer["next"] = fmt.Sprintf("job %s has not finished; use the tool wait to wait for it, or the tool why to learn "+
			"what it is waiting for", id)
	}
	if d.Attempts == 0 {
		return answer, nil
	}
	output, err := s.readOutput(ctx, control.Logs{ID: id})
	if err != nil {
		return nil, fmt.Errorf("job %s is %s, but its output cannot be read: %w", id, d.State, err)
	}
	delete(output, "state")
	maps.Copy(answer, output)
	return answer, nil
}

// callOnSelection returns the function of a tool that calls a method for several jobs, but only for jobs of the
// caller. selectionOf returns the field of the method's parameters that selects the jobs.
func callOnSelection[P any](method func(api, context.Context, P) (control.BulkResult, error),
	selectionOf func(*P) *control.Selection) func(s *toolCall, ctx context.Context, a arguments) (any, error) {
	return func(s *toolCall, ctx context.Context, a arguments) (any, error) {
		p, err := control.ParseParams[P](a.raw)
		if err == nil {
			err = s.limitToOwnJobs(ctx, selectionOf(&p))
		}
		if err != nil {
			return nil, err
		}
		return method(s.api, ctx, p)
	}
}

// limitToOwnJobs makes a selection select only jobs of the caller, unless Options.AllUsers is set. It returns
// an error if the selection contains too many ids.
func (s *toolCall) limitToOwnJobs(ctx context.Context, selection *control.Selection) (err error) {
	ids := selection.AllIDs()
	if len(ids) > maxCallJobIDs {
		return queue.Invalid("ids", "too many jobs (%d); use at most %d ids, or select jobs by other parameters", len(ids),
			maxCallJobIDs)
	}
	if len(ids) > 0 || s.opt.AllUsers {
		return s.checkOwnJobs(ctx, ids...)
	}
	selection.User, err = s.callerName(ctx)
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
		setMember(short, name, allMembers[name])
	}
	if s.opt.AllUsers {
		setMember(short, "user", j.User)
		setMember(short, "submitter", j.Submitter)
	}
	if j.Attempts > 0 || j.RunAt <= j.CreatedAt {
		delete(short, "run_at")
	}
	return short
}

// setMember adds a member to an object unless the value is empty. It truncates long commands, long errors and
// the entries of lists.
func setMember(object map[string]any, name string, value any) {
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

// truncateText shortens a text to maxShortTextChars characters.
func truncateText(text string) string {
	if runes := []rune(text); len(runes) > maxShortTextChars {
		return string(runes[:maxShortTextChars]) + "…"
	}
	return text
}
