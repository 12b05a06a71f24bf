// Command pages generates documentation files from the program. With -check it fails if one of the
// files is out of date, and writes nothing.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func main() {
	check := flag.Bool("check", false, "fail if a file is out of date")
	flag.Parse()
	wrong := false
	for path, text := range map[string]string{
		"queuectl.toml.example": config.Example(),
		"docs/reference.md":     renderReferencePage(),
		"docs/verbs.md": "# Command reference\n\nEvery command of `queuectl` with its flags and examples. " +
			"`queuectl COMMAND --help --all` prints the same in a terminal, and `queuectl man DIR` writes it as manual pages. " +
			"This page is generated from the program by `make pages`.\n\n" + queuectldOutput("man", "--markdown"),
		"docs/schemas.json": queuectldOutput("schema", "--json"),
	} {
		old, err := os.ReadFile(path)
		if err == nil && string(old) == text {
			continue
		}
		if *check {
			fmt.Fprintf(os.Stderr, "%s is out of date; run: make pages\n", path)
			wrong = true
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			wrong = true
		}
	}
	if upToDate, err := updateScreenPicture(*check); !upToDate {
		fmt.Fprintln(os.Stderr, err)
		wrong = true
	}
	if wrong {
		os.Exit(1)
	}
}

// queuectldOutput runs queuectld with these arguments and returns what it prints.
func queuectldOutput(args ...string) string {
	cmd := exec.Command("go", append([]string{"run", "./cmd/queuectld"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return string(out)
}

// timeFormatsMarkdown is the part of the reference page about durations and times. A test of package when checks that
// the program accepts all forms on that page.
//
//go:embed durations_and_times.md
var timeFormatsMarkdown string

// renderReferencePage returns the page of fields, settings, methods, states and errors.
func renderReferencePage() string {
	var b strings.Builder
	b.WriteString("# Reference\n\nFields, durations and times, states, settings, methods and errors. Commands are " +
		"described in [verbs.md](verbs.md), the protocol in [protocol.md](protocol.md) and its JSON Schemas in " +
		"[schemas.json](schemas.json). This page is generated from the program by `make pages`.\n")
	b.WriteString("\n## Fields of a job\n\nThese are the names in JSON and in the protocol. The flag of a field has `-` " +
		"instead of `_`. The flag of a list or map has the singular and can be repeated: `--label team=web --label " +
		"tier=gold`.\n\n| field | value | meaning |\n|---|---|---|\n")
	kinds := []string{"text", "integer", "number", "[duration](#durations)", "[time](#times)", "size", "true or false",
		"list of texts", "map of texts", "list of exit codes"}
	for _, f := range queue.SpecFields() {
		name := "`" + f.Name + "`"
		if f.Alias != "" {
			name += " (`" + f.Alias + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, kinds[f.Kind], f.Usage())
	}
	b.WriteString("\n" + timeFormatsMarkdown)
	b.WriteString("\n## States\n\n| state | possible next states |\n|---|---|\n")
	for _, from := range append([]queue.State{0}, queue.States()...) {
		var nextStates []string
		for _, s := range queue.States() {
			if from.CanChangeTo(s) {
				nextStates = append(nextStates, s.String())
			}
		}
		name := from.String()
		if from == 0 {
			name = "(new)"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(nextStates, ", "))
	}
	b.WriteString("\n## Settings\n\nA change applies immediately, unless the description says otherwise. In the " +
		"settings file, a setting whose name contains a dot belongs to a table: `web.listen` is `listen` in `[web]`.\n\n| " +
		"setting | default | meaning |\n|---|---|---|\n")
	for _, k := range config.AllSettings() {
		name := "`" + k.Name + "`"
		for _, other := range k.Aliases() {
			name += " (`" + other + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, k.DefaultText, k.Description())
	}
	b.WriteString("\n## Protocol methods\n\nEach method needs a [right](users.md). Some methods need a stronger right " +
		"for the jobs of other users.\n\n| method | right | right for other users' jobs | streams |\n|---|---|---|---|\n")
	for _, m := range control.Methods() {
		streams := ""
		if m.SendsNotifications {
			streams = "yes"
		}
		others := ""
		if m.RightForOthersJobs != m.Right {
			others = string(m.RightForOthersJobs)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Right, others, streams)
	}
	b.WriteString("\n## Protocol limits\n\nThe [protocol](protocol.md#limits) describes what happens if a limit is " +
		"exceeded.\n\n| subject | limit |\n|---|---|\n")
	for _, l := range control.ProtocolLimits() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.Description, l.LimitText)
	}
	b.WriteString("\n## Errors\n\n| `data.code` | number | exit code | retry |\n|---|---|---|---|\n")
	for _, r := range control.ErrorCodes {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s |\n", r.Code, r.RPCCode, r.ExitStatus, r.RetryAdvice)
	}
	return b.String()
}
