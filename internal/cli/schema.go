package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// SchemaVerb returns the command schema. Only queuectld links it, because it is rarely used.
func SchemaVerb(app *App) *cobra.Command {
	a := admin{app}
	return &cobra.Command{
		Use: "schema [METHOD]", Short: "Print the JSON Schemas of the protocol methods", Args: atMostOne("a protocol method, such as enqueue"),
		RunE: func(_ *cobra.Command, args []string) error {
			list := control.Schemas()
			if len(args) == 0 {
				return a.indented(list)
			}
			for _, s := range list {
				if s.Method == args[0] {
					return a.indented(s)
				}
			}
			return Usage("unknown method %q%s", args[0], near(args[0], control.MethodNames(), "use one of: "+strings.Join(control.MethodNames(), ", ")))
		},
	}
}

// indented prints JSON, indented unless --json or --jsonl is set.
func (o *Output) indented(v any) error {
	if o.Structured() {
		return o.PrintJSON(v)
	}
	return encodeJSON(o.Out, v, "  ")
}

func initVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Do nothing: the first job creates the queue", Args: Exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.Structured() {
				return a.PrintJSON(map[string]bool{"done": true})
			}
			return a.Println("nothing to do: the first job creates the queue; try: queuectl enqueue 'echo hello'")
		},
	}
}
