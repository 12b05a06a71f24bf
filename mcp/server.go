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

// ServerOptions configure a server.
type ServerOptions struct {
	AllowChanges bool // also offer the tools that change something
	// IncludeAllUsers includes the jobs of other users, if the caller's rights allow it.
	IncludeAllUsers bool
	ServerVersion   string
	// AddCallerContext adds the caller's context, such as the working directory, to a new job. It returns an error if
	// the service would reject the job.
	AddCallerContext func(*queue.Spec) error
	// ExplainError adds a next step for the user to an error.
	ExplainError func(error) error
}

// toolDescriptions contains one line "NAME: DESCRIPTION" for each tool. The line with the name "instructions" explains
// to the client how to use the tools together.
//
//go:embed descriptions.txt
var toolDescriptions string

// toolDescription returns the description with the given name from toolDescriptions.
func toolDescription(toolName string) string {
	_, text, _ := strings.Cut("\n"+toolDescriptions, "\n"+toolName+": ")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// Serve replies to one client until the client closes the input, which is not an error, or until ctx ends. It may
// process several requests at the same time. For each request it calls connect, which returns a new client of the
// service, and closes this client after the request. So cancelling one request does not interrupt others.
func Serve(ctx context.Context, connect func() *control.Client, options ServerOptions, in io.ReadCloser,
	out io.WriteCloser) error {
	m := mcp.NewServer(&mcp.Implementation{Name: "queuectl", Title: "queuectl, a queue for shell commands",
		Version: options.ServerVersion}, &mcp.ServerOptions{Instructions: toolDescription("instructions"),
		Capabilities: &mcp.ServerCapabilities{}})
	schemas, results := map[string]map[string]any{}, map[string]map[string]any{}
	for _, method := range control.Schemas() {
		schemas[method.Method], results[method.Method] = method.Params, method.Result
	}
	withheld := map[string]bool{}
	open := newRequestTracker()
	defer open.stopJobWaits()
	for _, t := range tools {
		if t.makesChanges && !options.AllowChanges {
			withheld[t.name] = true
			continue
		}
		m.AddTool(&mcp.Tool{
			Name: t.name, Description: toolDescription(t.name), InputSchema: t.argumentSchema(schemas[t.apiMethod],
				options.IncludeAllUsers),
			OutputSchema: t.outputSchema(results),
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: !t.makesChanges, DestructiveHint: &t.makesChanges,
				IdempotentHint: !t.makesChanges, OpenWorldHint: new(t.runsCommands)},
		}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c := connect()
			defer c.Close()
			return (&toolCall{api: c, options: options, newClient: connect, progress: progressReporterOf(r),
				jobWaitContext: open.jobWaitCtx}).
				runTool(ctx, &t, r.Params.Arguments), nil
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
	answers := &sharedWriter{WriteCloser: out, requestTracker: open}
	asked := &lineReader{Closer: in, clientInput: bufio.NewReader(in), clientOutput: answers, requestTracker: open,
		sessionContext: ctx}
	err := m.Run(ctx, &mcp.IOTransport{Reader: asked, Writer: answers, MaxLineLength: control.MaxLineBytes})
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("standard input must contain Model Context Protocol messages from a coding agent: %w", err)
}

// toolCall executes one call of a tool.
type toolCall struct {
	api            control.API
	options        ServerOptions
	newClient      func() *control.Client // returns another client of the queue
	progress       *progressReporter
	jobWaitContext context.Context // ends when calls must stop waiting for jobs
}

// runTool executes a tool. If the tool fails, the error is part of the result, so that the agent sees it.
func (s *toolCall) runTool(ctx context.Context, t *tool, argumentsJSON json.RawMessage) *mcp.CallToolResult {
	answer, err := s.executeTool(ctx, t, argumentsJSON)
	if err != nil {
		err = s.options.ExplainError(err)
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

// executeTool decodes the arguments of a call and executes the tool.
func (s *toolCall) executeTool(ctx context.Context, t *tool, argumentsJSON json.RawMessage) (any, error) {
	if len(argumentsJSON) == 0 || string(argumentsJSON) == "null" {
		argumentsJSON = json.RawMessage("{}")
	}
	if err := queue.CheckJSON(argumentsJSON); err != nil {
		return nil, err
	}
	a, err := t.parseArguments(argumentsJSON, s.options.IncludeAllUsers)
	if err != nil {
		return nil, err
	}
	return t.handler(s, ctx, a)
}

// callerUserName returns the name of the user that runs the server.
func (s *toolCall) callerUserName(ctx context.Context) (string, error) {
	who, err := s.api.Whoami(ctx, control.NoParams{})
	return who.User, err
}

// checkCallerOwnsJobs returns an error if another user has enqueued one of the jobs. With
// ServerOptions.IncludeAllUsers, it accepts all jobs. See docs/decisions/0093.
func (s *toolCall) checkCallerOwnsJobs(ctx context.Context, ids ...string) error {
	if s.options.IncludeAllUsers {
		return nil
	}
	me, err := s.callerUserName(ctx)
	for _, id := range ids {
		var d control.JobDetail
		if err == nil {
			d, err = s.api.ShowJob(ctx, control.JobShowParams{ID: control.JobID(id)})
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
