package admin

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/hints"
)

// SchemaVerb returns the command "queuectl schema".
func SchemaVerb(a *cli.App) *cobra.Command {
	return cli.NewCommand("schema [METHOD]", "Print the JSON Schemas of the protocol methods",
		cli.AtMostOneArg("a protocol method, such as enqueue"), func(_ context.Context, args []string) error {
			list := control.Schemas()
			if len(args) == 0 {
				return a.PrintIndentedJSON(list)
			}
			for _, s := range list {
				if s.Method == args[0] {
					return a.PrintIndentedJSON(s)
				}
			}
			return fault.Usagef("unknown method %q%s", args[0],
				hints.SimilarWordHint(args[0], control.MethodNames(), "use one of: "+strings.Join(control.MethodNames(), ", ")))
		})
}
