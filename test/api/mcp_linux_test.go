package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/queuectl/queuectl/internal/testrig"
)

// mcpAgent is a client of the Model Context Protocol, built with the official SDK. It acts as an AI agent.
type mcpAgent struct {
	*testing.T
	session       *mcp.ClientSession
	outputSchemas map[string]*jsonschema.Schema       // schemas of the tools' structured results, by tool
	notifications chan mcp.ProgressNotificationParams // notifications that the agent has received
}

// newMCPAgent starts an MCP server with serverCmd and connects an agent to it.
func newMCPAgent(t *testing.T, serverCmd *exec.Cmd) *mcpAgent {
	t.Helper()
	progress := make(chan mcp.ProgressNotificationParams, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress <- *r.Params
		},
	})
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: serverCmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	a := &mcpAgent{t, session, map[string]*jsonschema.Schema{}, progress}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		a.outputSchemas[tool.Name] = compiledSchema(t, "output-"+tool.Name, tool.OutputSchema)
	}
	return a
}

// compiledSchema compiles a schema with a third-party library.
func compiledSchema(t *testing.T, schemaName string, schema any) *jsonschema.Schema {
	t.Helper()
	raw, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaName, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(schemaName)
	if err != nil {
		t.Fatalf("%s: %v", schemaName, err)
	}
	return compiled
}

func (a *mcpAgent) toolNames() (names []string) {
	a.Helper()
	list, err := a.session.ListTools(a.Context(), nil)
	if err != nil {
		a.Fatal(err)
	}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// toolResult is the structured result of a tool.
type toolResult struct {
	ID, State, Command, Stdout, Stderr, Output, Error, Code string
	TimedOut                                                bool `json:"timed_out"`
	ExitCode                                                *int `json:"exit_code"`
	Jobs, Ended                                             []toolResult
	Open, Done                                              []string
	Refused                                                 []struct{ ID, Code string }
	Next                                                    *string
	Spec                                                    map[string]any
	Reasons                                                 []struct{ Kind string }
}

// callTool calls a tool and returns its result. The call must fail if wantError is true, and succeed otherwise.
func (a *mcpAgent) callTool(toolName string, args map[string]any, wantError bool) (result toolResult) {
	a.Helper()
	got, err := a.session.CallTool(a.Context(), &mcp.CallToolParams{Name: toolName, Arguments: args})
	if err != nil {
		a.Fatalf("%s %v: %v", toolName, args, err)
	}
	text := got.Content[0].(*mcp.TextContent).Text
	if err := json.Unmarshal([]byte(text), &result); err != nil || got.IsError != wantError {
		a.Fatalf("%s %v: error %t, %v: %s", toolName, args, got.IsError, err, text)
	}
	if schema := a.outputSchemas[toolName]; schema != nil {
		if err := schema.Validate(got.StructuredContent); err != nil {
			a.Errorf("%s %v: the structured result does not conform to its schema: %v", toolName, args, err)
		}
	}
	return result
}

// toolArgs contains the arguments of a tool call.
type toolArgs = map[string]any

// startMCP starts "queuectl mcp" and begins a session with the given protocol version. It returns the input and
// output of the server, and a function that waits until the server has ended.
func startMCP(q *testrig.Harness, protocolVersion string) (stdin io.WriteCloser, stdout *bufio.Scanner,
	waitUntilEnded func()) {
	q.Helper()
	cmd := q.CLICommand("mcp")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		q.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+protocolVersion+
		`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`)
	return stdin, bufio.NewScanner(out), func() {
		if err := cmd.Wait(); err != nil {
			q.Error(err)
		}
	}
}

// A line that is not a message gets an error reply, as JSON-RPC requires. The session continues.
func TestMCPSurvivesInvalidLines(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	in, lines, ends := startMCP(q, "2025-06-18")
	// Write in a goroutine, because the write returns only after the server has read everything.
	go io.WriteString(in, strings.Join([]string{"{broken", "7", `{"id":5}`, strings.Repeat("x", 8<<20+1), "",
		`{"jsonrpc":"2.0","id":2,"method":"ping"}`, ""}, "\n"))
	var got []string
	for lines.Scan() {
		var answer struct {
			ID    int
			Error struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
			t.Fatalf("the server sent %q: %v", lines.Text(), err)
		}
		got = append(got, fmt.Sprint(answer.ID, answer.Error.Code))
		if answer.ID == 2 {
			in.Close()
		}
	}
	ends()
	slices.Sort(got)
	if want := []string{"0 -32600", "0 -32600", "0 -32700", "1 0", "2 0", "5 -32600"}; !slices.Equal(got, want) {
		t.Errorf("the server answers %q, want %q", got, want)
	}
}

// In old protocol versions, a client may send several messages in one line (a batch), and the server replies
// with one line. In later versions, a batch is an error.
func TestMCPAnswersBatches(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for version, want := range map[string]string{
		"2025-03-26": `[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":3,"result":{}}]`,
		"2025-06-18": `"code":-32600`} {
		in, lines, ends := startMCP(q, version)
		io.WriteString(in, `[{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"ping"}]`+"\n")
		for lines.Scan() && !strings.Contains(lines.Text(), want) {
			if !strings.Contains(lines.Text(), `"id":1`) {
				t.Errorf("a batch in protocol version %s gets %s, want %s", version, lines.Text(), want)
				break
			}
		}
		in.Close()
		ends()
	}
}

// With the tools, an agent can enqueue jobs, wait for them, read their results and retry them. The results of the tools
// are short. If the MCP server is started without --write, the agent can only read.
func TestMCPToolsEnqueueAndReadJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	reads := newMCPAgent(t, q.CLICommand("mcp"))
	if got, want := reads.toolNames(), []string{"list", "logs", "show", "wait", "why"}; !slices.Equal(got, want) {
		t.Errorf("tools are %v, want %v", got, want)
	}
	if got := reads.callTool("enqueue", toolArgs{"command": "true"}, true); got.Code != "denied" ||
		!strings.Contains(got.Error, "--write") {
		t.Errorf("enqueue without --write: %+v", got)
	}
	typed := q.CLICommand("mcp")
	typed.Stdin = strings.NewReader("hello\n")
	if r := testrig.RunCommand(t, typed); r.ExitCode != 1 || r.Stdout != "" ||
		!strings.Contains(r.Stderr, "Model Context Protocol") {
		t.Errorf("mcp with text that is not JSON: %+v", r)
	}
	a := newMCPAgent(t, q.CLICommand("mcp", "--write"))
	if got := a.toolNames(); len(got) != 9 || !slices.Contains(got, "run_and_wait") {
		t.Errorf("tools are %v", got)
	}
	outcome := a.callTool("run_and_wait", toolArgs{"command": "echo hi; echo oops >&2; exit 3", "wait": "20s"}, false)
	if outcome.State != "dead" || outcome.ExitCode == nil || *outcome.ExitCode != 3 || outcome.Stdout != "hi\n" ||
		outcome.Stderr != "oops\n" || outcome.Error == "" {
		t.Errorf("outcome of run_and_wait: %+v", outcome)
	}
	slow := a.callTool("run_and_wait", toolArgs{"argv": []string{"sleep", "600"}, "wait": 0.1}, false)
	if !slow.TimedOut || slow.State == "completed" {
		t.Errorf("a command that takes longer than wait: %+v", slow)
	}
	if got := a.callTool("cancel", toolArgs{"id": slow.ID}, false); !slices.Equal(got.Done, []string{slow.ID}) {
		t.Errorf("cancelled %+v", got)
	}
	first := a.callTool("enqueue", toolArgs{"command": "echo " + strings.Repeat("x", 5000),
		"labels": toolArgs{"of": "test"}},
		false)
	second := a.callTool("enqueue", toolArgs{"command": "true", "delay": "1h"}, false)
	waited := a.callTool("wait", toolArgs{"ids": []string{first.ID, second.ID}, "timeout": "2s"}, false)
	if len(waited.Ended) != 1 || waited.Ended[0].ID != first.ID || !slices.Equal(waited.Open, []string{second.ID}) ||
		!waited.TimedOut {
		t.Errorf("waited: %+v", waited)
	}
	if got := a.callTool("why", toolArgs{"id": second.ID}, false); len(got.Reasons) == 0 || got.Reasons[0].Kind != "time" {
		t.Errorf("why: %+v", got)
	}
	list := a.callTool("list", toolArgs{"label": toolArgs{"of": "test"}}, false)
	if len(list.Jobs) != 1 || len(list.Jobs[0].Command) > 400 {
		t.Errorf("list: %+v", list)
	}
	if got := a.callTool("list", toolArgs{"full": true, "limit": 1, "state": "completed"}, false); len(got.Jobs) != 1 ||
		len(got.Jobs[0].Command) < 5000 {
		t.Errorf("list with full = true: %d jobs", len(got.Jobs))
	}
	if got := a.callTool("logs", toolArgs{"id": first.ID}, false); len(got.Stdout) != 5001 {
		t.Errorf("logs: %d bytes", len(got.Stdout))
	}
	if got := a.callTool("show", toolArgs{"id": first.ID, "full": true}, false); got.Spec == nil {
		t.Errorf("show with full = true: %+v", got)
	}
	if got := a.callTool("retry", toolArgs{"id": outcome.ID}, false); !slices.Equal(got.Done, []string{outcome.ID}) {
		t.Errorf("retried: %+v", got)
	}
	for _, bad := range []struct {
		tool, code, wantText string
		args                 toolArgs
	}{
		{"show", "not_found", "nosuch", toolArgs{"id": "nosuch"}},
		{"list", "invalid", "user: unknown parameter", toolArgs{"user": "root"}},
		{"list", "invalid", "limit: too large; the maximum is 200", toolArgs{"limit": 1000}},
		{"wait", "invalid", "timeout: must be more than 0 and at most 1h", toolArgs{"id": second.ID, "timeout": "2h"}},
		{"logs", "invalid", "follow: unknown parameter", toolArgs{"id": first.ID, "follow": true}},
		{"enqueue", "invalid", "comand", toolArgs{"comand": "true"}},
		{"enqueue", "invalid", "command", toolArgs{}},
		{"cancel", "invalid", "ids: no jobs given", toolArgs{}},
		{"cancel", "invalid", "ids: too few entries (0)", toolArgs{"ids": []string{}}},
		{"retry", "invalid", "ids: no jobs given", toolArgs{"dry_run": true}},
	} {
		if got := a.callTool(bad.tool, bad.args, true); got.Code != bad.code || !strings.Contains(got.Error, bad.wantText) {
			t.Errorf("%s %v: %+v", bad.tool, bad.args, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: "wait",
		Arguments: toolArgs{"id": second.ID}}); err == nil {
		t.Error("a wait that the client cancelled got a reply")
	}
	a.callTool("list", nil, false)
	q.StopService()
	if got := a.callTool("list", nil, true); !strings.Contains(got.Error, "service start") {
		t.Errorf("a tool call without a service: %+v", got)
	}
	q.StartService("--workers", "2")
	a.callTool("list", nil, false)
}

// An agent gets the terminal output of a job as text: the last state of each line, without control
// sequences.
func TestMCPShowsTerminalOutputAsText(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	a := newMCPAgent(t, q.CLICommand("mcp", "--write"))
	const script = `printf '\033]0;title\007\033[31m 10%%\r\033[K100%%\033[0m\n\033[?1049hscreen\033[?1049lend\n'`
	outcome := a.callTool("run_and_wait", toolArgs{"command": script, "tty": true}, false)
	if outcome.Stdout != "100%\nend\n" {
		t.Errorf("run_and_wait: %q", outcome.Stdout)
	}
	if got := a.callTool("logs", toolArgs{"id": outcome.ID}, false); got.Stdout != "100%\nend\n" {
		t.Errorf("logs: %q", got.Stdout)
	}
	if got := a.callTool("show", toolArgs{"id": outcome.ID}, false); got.Output != "100%\nend\n" {
		t.Errorf("show: %q", got.Output)
	}
	if got := a.callTool("show", toolArgs{"id": outcome.ID, "full": true}, false); !strings.Contains(got.Output,
		"\x1b[31m") {
		t.Errorf("show with full = true: %q; want the escape sequence", got.Output)
	}
}

// The description of each tool declares its parameters, its results, and its effects outside the queue.
func TestMCPToolsDeclareParametersAndEffects(t *testing.T) {
	forbidden := map[string][]string{
		"list": {`{"limit":201}`}, "show": {`{"id":"a","history_before":0}`}, "logs": {`{"n":1}`},
		"wait":         {`{"ids":["a"],"timeout":3601}`, `{"timeout":1}`},
		"cancel":       {`{"dry_run":true}`, `{"id":"a","all":true}`},
		"retry":        {`{"only":true}`, `{"ids":["a"],"queue":"b"}`},
		"enqueue":      {`{"command":"true","unique_for":"1h"}`, `{"priority":1}`, `{"argv":["true"],"shell":"sh"}`},
		"run_and_wait": {`{"command":"true","wait":3601}`, `{"command":"true","wait":"soon"}`, `{"wait":1}`},
	}
	a := newMCPAgent(t, testrig.StartQueue(t, "--workers", "0").CLICommand("mcp", "--write"))
	list, err := a.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	destroys := []string{"enqueue", "run_and_wait", "cancel", "retry"}
	open := []string{"enqueue", "run_and_wait", "retry"}
	for _, tool := range list.Tools {
		annotations := tool.Annotations
		if *annotations.DestructiveHint != slices.Contains(destroys, tool.Name) ||
			*annotations.OpenWorldHint != slices.Contains(open, tool.Name) {
			t.Errorf("%s: destructive %t, open world %t", tool.Name, *annotations.DestructiveHint, *annotations.OpenWorldHint)
		}
		input := tool.InputSchema.(map[string]any)
		for name, p := range input["properties"].(map[string]any) {
			if text, _ := p.(map[string]any)["description"].(string); text == "" {
				t.Errorf("%s: %s has no description", tool.Name, name)
			}
		}
		for _, condition := range []string{"allOf", "anyOf", "oneOf", "not"} {
			if input[condition] != nil {
				t.Errorf("%s: its schema has %s at the top level, which clients reject", tool.Name, condition)
			}
		}
		compiled := compiledSchema(t, "input-"+tool.Name, input)
		if needs := compiled.Validate(toolArgs{}) != nil; needs != (tool.Name != "list") {
			t.Errorf("%s: its schema refuses {}: %t", tool.Name, needs)
		}
		for _, invalid := range forbidden[tool.Name] {
			var args toolArgs
			if err := json.Unmarshal([]byte(invalid), &args); err != nil {
				t.Fatal(err)
			}
			if compiled.Validate(map[string]any(args)) == nil {
				t.Errorf("%s: its schema permits %s", tool.Name, invalid)
			}
			a.callTool(tool.Name, args, true)
		}
		if tool.OutputSchema == nil {
			t.Errorf("%s: the tool has no schema for its result", tool.Name)
		}
	}
}

// The server replies to every request, even if the input ends right after the request.
func TestMCPAnswersAfterItsInputHasEnded(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	const n = 20
	lines := []string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
			`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	}
	for i := range n {
		lines = append(lines, fmt.Sprintf(
			`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"list","arguments":{}}}`, i+1))
	}
	lines = append(lines, fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run_and_wait","arguments":{"command":"echo hi"}}}`,
		n+1))
	cmd := q.CLICommand("mcp", "--write")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	r := testrig.RunCommand(t, cmd)
	answered := map[int]bool{}
	for line := range strings.Lines(r.Stdout) {
		var answer struct {
			ID     int
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		answered[answer.ID] = answer.Result != nil
	}
	for i := range n + 2 {
		if !answered[i] {
			t.Errorf("request %d of %d has no answer", i, n+2)
		}
	}
	if r.ExitCode != 0 {
		t.Errorf("the server exits with %d: %s", r.ExitCode, r.Stderr)
	}
}

// An MCP server ends soon after its input has ended, even if a call still waits for a job. It first replies to
// that call. The job continues.
func TestMCPEndsWhileACallWaits(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	cmd := q.CLICommand("mcp", "--write")
	cmd.Stdin = strings.NewReader(
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
			`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_and_wait",` +
			`"arguments":{"command":"sleep 600","wait":"1h"}}}
`)
	started := time.Now()
	r := testrig.RunCommand(t, cmd)
	if r.ExitCode != 0 || time.Since(started) > time.Minute {
		t.Errorf("the server ends after %v with %+v", time.Since(started), r)
	}
	if !strings.Contains(r.Stdout, `"id":1,`) || !strings.Contains(r.Stdout, `"timed_out":true`) {
		t.Errorf("the reply to the waiting call lacks timed_out: %s", r.Stdout)
	}
	if got := q.MustRunCLI("show", "1"); !strings.Contains(got, "processing") {
		t.Errorf("the job is not processing: %s", got)
	}
}

// By default, an agent sees only the jobs of the user who started the MCP server, even if that user may see
// more. If the server is started for all users, it shows everything that this user may see.
func TestMCPSeesOnlyCallersJobs(t *testing.T) {
	q := testrig.StartSharedQueue(t, testrig.AllPersonsAccessSettings, "--workers", "2")
	hers := strings.TrimSpace(q.MustRunAs(testrig.Alice, "enqueue", "-q", "--delay", "1h", "echo hers"))
	bobsJob := strings.TrimSpace(q.MustRunAs(testrig.Bob, "enqueue", "-q", "--delay", "1h", "echo his"))
	agentOf := func(p testrig.Person, args ...string) *mcpAgent {
		return newMCPAgent(t, testrig.CommandAs(q.CLICommand(append([]string{"mcp"}, args...)...), p))
	}
	ids := func(list toolResult) (ids []string) {
		for _, j := range list.Jobs {
			ids = append(ids, j.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for _, p := range []testrig.Person{testrig.Bob, testrig.Operator, testrig.Admin} {
		a := agentOf(p, "--write")
		for _, tool := range []string{"show", "why", "logs", "wait", "cancel", "retry"} {
			if got := a.callTool(tool, toolArgs{"id": hers}, true); got.Code != "denied" {
				t.Errorf("%s: %s of a job of another user: %+v", p.Name, tool, got)
			}
		}
		if got := a.callTool("cancel", toolArgs{"all": true, "dry_run": true}, false); len(got.Done) != 0 {
			t.Errorf("%s: cancel of all jobs selects %+v", p.Name, got)
		}
		want := map[string][]string{"bob": {bobsJob}}[p.Name]
		if got := ids(a.callTool("list", nil, false)); !slices.Equal(got, want) {
			t.Errorf("%s: listed %v, want %v", p.Name, got, want)
		}
	}
	if got := ids(agentOf(testrig.Operator, "--all-users").callTool("list", nil, false)); len(got) != 2 {
		t.Errorf("jobs listed for all users: %v", got)
	}
	if got := agentOf(testrig.Bob, "--write", "--all-users").callTool("cancel", toolArgs{"id": hers},
		false); len(got.Refused) != 1 ||
		got.Refused[0].Code != "denied" {
		t.Errorf("a call that exceeds the caller's rights: %+v", got)
	}
	agentOf(testrig.Operator, "--write", "--all-users").callTool("cancel", toolArgs{"id": hers}, false)
	if got := q.ShowJob(hers).State; got != "cancelled" {
		t.Errorf("the job is %s, want cancelled", got)
	}
}
