// Command queuectl is the client of a durable queue of shell commands, and the runner of its jobs. It
// is small, so that it starts fast. It executes queuectld for commands that need large code.
package main

import (
	"github.com/queuectl/queuectl/internal/cli"
	_ "github.com/queuectl/queuectl/internal/tune/stack"
	"github.com/queuectl/queuectl/runner/process"
)

func main() {
	process.RunIfLimiter()
	cli.Main(cli.Program{Verbs: []cli.Verb{{Name: "runner", Build: runnerVerb, AllowsUnknownTZ: true}}})
}
