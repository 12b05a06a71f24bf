// Package mcp offers a queue to coding agents, by the Model Context Protocol (modelcontextprotocol.io).
package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Options are what a server may do, and for whom.
type Options struct {
	Write bool // it offers the tools that change something
	// AllUsers has it tell of others' jobs, and change them, as far as the caller's rights go.
	AllUsers bool
	Version  string
	// Complete adds to a job what comes from the caller, as his folder, and reports what the service would
	// refuse.
	Complete func(*queue.Spec) error
	// Explain adds to an error what a person can do about it.
	Explain func(error) error
}

// instructions are what a client is told of all tools together.
const instructions = `Jobs are shell commands. A service on this machine queues them, runs them, retries them and keeps their results. ` +
	`Results are abbreviated; full=true returns complete objects. A job continues even if no client waits for it.`

// Serve answers one client until it leaves, which is no error, or ctx ends. Many requests may be under way at
// once, and each has a client of the queue of its own from connect, which is closed then: a wait that is given up
// is to cut no other's answer.
func Serve(ctx context.Context, connect func() *control.Client, o Options, in io.ReadCloser, out io.WriteCloser) error {
	m := mcp.NewServer(&mcp.Implementation{Name: "queuectl", Title: "queuectl, a queue for shell commands", Version: o.Version}, &mcp.ServerOptions{Instructions: instructions, Capabilities: &mcp.ServerCapabilities{}})
	methods, schemas := control.Schemas(), map[string]map[string]any{}
	for _, method := range methods {
		schemas[method.Method] = method.Params
	}
	results := resultsOf(methods)
	withheld := map[string]bool{}
	open := newPending()
	defer open.stop()
	for _, t := range tools {
		if t.writes && !o.Write {
			withheld[t.name] = true
			continue
		}
		m.AddTool(&mcp.Tool{
			Name: t.name, Description: t.does, InputSchema: t.schema(schemas[t.method], o.AllUsers), OutputSchema: t.output(results),
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: !t.writes, DestructiveHint: &t.destroys, IdempotentHint: !t.writes, OpenWorldHint: new(t.runs)},
		}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c := connect()
			defer c.Close()
			return (&server{api: c, opt: o, connect: connect, progress: reporterOf(r), enough: open.enough}).call(ctx, &t, r.Params.Arguments), nil
		})
	}
	m.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if call, is := r.(*mcp.CallToolRequest); is && withheld[call.Params.Name] {
				return toolResult(map[string]any{"error": "this server is read-only; to allow " + call.Params.Name + ", start it with: queuectl mcp --write", "code": queue.CodeDenied}, true), nil
			}
			return next(ctx, method, r)
		}
	})
	answers := &shared{WriteCloser: out, open: open}
	asked := &lines{Closer: in, in: bufio.NewReader(in), out: answers, open: open, ctx: ctx}
	err := m.Run(ctx, &mcp.IOTransport{Reader: asked, Writer: answers, MaxLineLength: control.MaxLine})
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("standard input must contain Model Context Protocol messages from a coding agent: %w", err)
}

// server carries out one call.
type server struct {
	api      control.API
	opt      Options
	connect  func() *control.Client // makes another client of the queue
	progress *reporter
	enough   context.Context // ends when calls should no longer wait for jobs
}

// call carries out a tool. What goes wrong is told in its result: the agent is to read it.
func (s *server) call(ctx context.Context, t *tool, raw json.RawMessage) *mcp.CallToolResult {
	answer, err := s.answer(ctx, t, raw)
	if err != nil {
		err = s.opt.Explain(err)
		answer = map[string]any{"error": err.Error()}
		var e *queue.Error
		if errors.As(err, &e) {
			answer = map[string]any{"error": e.Error(), "code": e.Code}
		}
	}
	return toolResult(answer, err != nil)
}

// toolResult returns an answer, or an error, as the result of a tool.
func toolResult(answer any, wrong bool) *mcp.CallToolResult {
	text, err := json.Marshal(answer)
	if err != nil {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
	}
	return &mcp.CallToolResult{IsError: wrong, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}
}

func (s *server) answer(ctx context.Context, t *tool, raw json.RawMessage) (any, error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if err := queue.CheckJSON(raw); err != nil {
		return nil, err
	}
	a, err := t.arguments(raw, s.opt.AllUsers)
	if err != nil {
		return nil, err
	}
	return t.call(s, ctx, a)
}

// me is the caller by name.
func (s *server) me(ctx context.Context) (string, error) {
	who, err := s.api.Whoami(ctx, control.Nothing{})
	return who.User, err
}

// own refuses jobs that the caller has not enqueued, unless all users' are meant.
// See docs/decisions/0093.
func (s *server) own(ctx context.Context, ids ...string) error {
	if s.opt.AllUsers {
		return nil
	}
	me, err := s.me(ctx)
	for _, id := range ids {
		var d control.JobDetail
		if err == nil {
			d, err = s.api.Show(ctx, control.Show{ID: control.Name(id)})
		}
		if err == nil && !ownedBy(&d.Job, me) {
			err = queue.Errorf(queue.CodeDenied, "job %s belongs to another user; to include the jobs of all users, start the server with: queuectl mcp --all-users", id)
		}
	}
	return err
}

// ownedBy reports whether a user has enqueued a job.
func ownedBy(j *control.Job, user string) bool {
	return j.Submitter == user || j.Submitter == "" && j.User == user
}
