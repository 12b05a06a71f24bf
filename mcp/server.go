// Package mcp lets coding agents use a queue through the Model Context Protocol (modelcontextprotocol.io). It
// translates calls of tools to calls of the control API.
//
// Start with Serve. The table tools lists the tools that the server offers.
package mcp

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Options configure a server.
type Options struct {
	AllowChanges bool // also offer the tools that change something
	// AllUsers includes the jobs of other users, if the caller's rights allow it.
	AllUsers bool
	Version  string
	// AddContext adds the caller's context, such as the working directory, to a new job. It returns an error if
	// the service would reject the job.
	AddContext func(*queue.Spec) error
	// Explain adds a next step for the user to an error.
	Explain func(error) error
}

// descriptions contains one line NAME: DESCRIPTION for each tool. The line named "instructions" describes all
// tools together to the client.
//
//go:embed descriptions.txt
var descriptions string

// description returns the description with the given name from the text descriptions.
func description(name string) string {
	_, text, _ := strings.Cut("\n"+descriptions, "\n"+name+": ")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// Serve replies to one client until the client closes the input, which is not an error, or until ctx ends. It
// may process several requests at the same time. For each request it calls connect and uses its own client of
// the service, which it closes after the request. So cancelling one request does not interrupt others.
func Serve(ctx context.Context, connect func() *control.Client, o Options, in io.ReadCloser, out io.WriteCloser) error {
	m := mcp.NewServer(&mcp.Implementation{Name: "queuectl", Title: "queuectl, a queue for shell commands",
		Version: o.Version}, &mcp.ServerOptions{Instructions: description("instructions"),
		Capabilities: &mcp.ServerCapabilities{}})
	schemas, results := map[string]map[string]any{}, map[string]map[string]any{}
	for _, method := range control.Schemas() {
		schemas[method.Method], results[method.Method] = method.Params, method.Result
	}
	withheld := map[string]bool{}
	open := newRequestTracker()
	defer open.stopWaiting()
	for _, t := range tools {
		if t.writes && !o.AllowChanges {
			withheld[t.name] = true
			continue
		}
		m.AddTool(&mcp.Tool{
			Name: t.name, Description: description(t.name), InputSchema: t.argumentSchema(schemas[t.method], o.AllUsers),
			OutputSchema: t.outputSchema(results),
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: !t.writes, DestructiveHint: &t.isDestructive,
				IdempotentHint: !t.writes, OpenWorldHint: new(t.runsCommands)},
		}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c := connect()
			defer c.Close()
			return (&toolCall{api: c, opt: o, connect: connect, progress: progressReporterOf(r), waitCtx: open.waitCtx}).
				run(ctx, &t, r.Params.Arguments), nil
		})
	}
	m.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if call, is := r.(*mcp.CallToolRequest); is && withheld[call.Params.Name] {
				return toolResult(map[string]any{"error": "this server is read-only; to allow " + call.Params.Name +
					", start it with: queuectl mcp --write", "code": queue.CodeDenied}, true), nil
			}
			return next(ctx, method, r)
		}
	})
	answers := &sharedWriter{WriteCloser: out, tracker: open}
	asked := &lineReader{Closer: in, reader: bufio.NewReader(in), output: answers, tracker: open, ctx: ctx}
	err := m.Run(ctx, &mcp.IOTransport{Reader: asked, Writer: answers, MaxLineLength: control.MaxLineBytes})
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("standard input must contain Model Context Protocol messages from a coding agent: %w", err)
}

// api contains the methods of a queue that the tools call.
type api interface {
	control.JobAPI
	Whoami(ctx context.Context, p control.NoParams) (control.Whoami, error)
	Status(ctx context.Context, p control.NoParams) (control.Status, error)
	Why(ctx context.Context, p control.WhyParams) (control.Why, error)
	Logs(ctx context.Context, p control.Logs, handlePiece func(control.OutputPiece) error) (control.LogsEnd, error)
	Enqueue(ctx context.Context, p control.Enqueue) (control.EnqueueResult, error)
	Cancel(ctx context.Context, p control.Selection) (control.BulkResult, error)
	Retry(ctx context.Context, p control.Retry) (control.BulkResult, error)
}

// toolCall executes one call of a tool.
type toolCall struct {
	api      api
	opt      Options
	connect  func() *control.Client // returns another client of the queue
	progress *progressReporter
	waitCtx  context.Context // ends when calls must stop waiting for jobs
}

// run executes a tool. If the tool fails, the error is part of the result, so that the agent sees it.
func (s *toolCall) run(ctx context.Context, t *tool, raw json.RawMessage) *mcp.CallToolResult {
	answer, err := s.execute(ctx, t, raw)
	if err != nil {
		err = s.opt.Explain(err)
		answer = map[string]any{"error": err.Error()}
		var e *queue.Error
		if errors.As(err, &e) {
			answer = map[string]any{"error": err.Error(), "code": e.Code}
		}
	}
	return toolResult(answer, err != nil)
}

// toolResult returns a tool's result with the given answer. isError marks the answer as the error of a failed
// call.
func toolResult(answer any, isError bool) *mcp.CallToolResult {
	text, err := json.Marshal(answer)
	if err != nil {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
	}
	return &mcp.CallToolResult{IsError: isError, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}},
		StructuredContent: json.RawMessage(text)}
}

// execute decodes the arguments of a call and executes the tool.
func (s *toolCall) execute(ctx context.Context, t *tool, raw json.RawMessage) (any, error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if err := queue.CheckJSON(raw); err != nil {
		return nil, err
	}
	a, err := t.parseArguments(raw, s.opt.AllUsers)
	if err != nil {
		return nil, err
	}
	return t.call(s, ctx, a)
}

// callerName returns the name of the user that runs the server.
func (s *toolCall) callerName(ctx context.Context) (string, error) {
	who, err := s.api.Whoami(ctx, control.NoParams{})
	return who.User, err
}

// checkOwnJobs returns an error if another user has enqueued one of the jobs. With Options.AllUsers, it accepts
// all jobs. See docs/decisions/0093.
func (s *toolCall) checkOwnJobs(ctx context.Context, ids ...string) error {
	if s.opt.AllUsers {
		return nil
	}
	me, err := s.callerName(ctx)
	for _, id := range ids {
		var d control.JobDetail
		if err == nil {
			d, err = s.api.Show(ctx, control.Show{ID: control.JobID(id)})
		}
		if err == nil && !d.Job.EnqueuedBy(me) {
			err = queue.Errorf(queue.CodeDenied, "job %s belongs to another user; to include the jobs of all users, start the "+
				"server with: queuectl mcp --all-users", id)
		}
	}
	return err
}

// enqueuedJobError returns the error for a call that enqueued a job and then failed with err. format contains
// verbs for the job's id and err. If the job no longer exists, the error says only that.
func enqueuedJobError(id control.JobID, err error, format string) error {
	if errors.Is(err, queue.ErrNotFound) {
		return queue.Errorf(queue.CodeNotFound, "job %s was enqueued, but has been removed since then", id)
	}
	return fmt.Errorf(format, id, err)
}
