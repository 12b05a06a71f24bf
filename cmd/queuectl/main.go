// Command queuectl is the client of a durable queue of shell commands. The service also starts it as the runner, the
// process that runs the jobs. queuectl is small, so that it starts fast. Commands that need large libraries are in the
// program queuectld; for such a command, queuectl executes queuectld.
package main

import (
	"github.com/queuectl/queuectl/internal/cli"
	_ "github.com/queuectl/queuectl/internal/tune/stack"
	"github.com/queuectl/queuectl/runner/process"
)

func main() {
	process.RunIfLimiterProcess()
	cli.Main(cli.Program{Verbs: []cli.Verb{{Name: "runner", BuildCommand: runnerVerb, AllowsUnknownTZ: true}}})
}
