// Command queuectl talks to a durable queue of shell commands, and runs its jobs. It is
// small, so that it starts quickly: what is heavy is in queuectld, which it becomes where
// a verb needs that.
package main

import (
	"github.com/queuectl/queuectl/internal/cli"
	_ "github.com/queuectl/queuectl/internal/stackroom"
	"github.com/queuectl/queuectl/runner/process"
)

func main() {
	process.Limiter()
	cli.Main(cli.Program{Verbs: []cli.Verb{{Name: "runner", Build: runnerVerb, AnyTZ: true}}})
}
