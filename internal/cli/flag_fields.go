package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/queue"
)

// The service names the field of a request that is wrong, like depends_on. A person typed a flag, like --after, so
// the client names the flag.

// fieldOf is the annotation of a flag that sets a field of another name.
const fieldOf = "field"

// setsField notes which field of a request a flag sets, where their names differ.
func setsField(f *pflag.Flag, field string) {
	f.Annotations = maps.Clone(f.Annotations) // other flags may share it
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[fieldOf] = []string{field}
}

// nameFlags returns an error that names the flags that were typed instead of the fields at fault.
func nameFlags(cmd *cobra.Command, err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *queue.Error:
		typed := flagsByField(cmd)
		if typed[e.Field] == "" {
			break
		}
		named := *e
		named.Field = typed[e.Field]
		for field, flag := range typed {
			if strings.Contains(field, "_") { // else it may be any word
				named.Message = strings.ReplaceAll(named.Message, field, flag)
			}
		}
		return &named
	case *lineError:
		return &lineError{e.what, e.line, nameFlags(cmd, e.cause)}
	case interface{ Unwrap() []error }:
		list := slices.Clone(e.Unwrap())
		for i := range list {
			list[i] = nameFlags(cmd, list[i])
		}
		return errors.Join(list...)
	}
	return err
}

// flagsByField returns the flags that were typed, like --after, by the fields that they set.
func flagsByField(cmd *cobra.Command) map[string]string {
	typed := map[string]string{}
	cmd.Flags().Visit(func(f *pflag.Flag) { // by name
		field := strings.ReplaceAll(f.Name, "-", "_")
		if of := f.Annotations[fieldOf]; len(of) > 0 {
			field = of[0]
		}
		typed[field] = cmp.Or(typed[field], "--"+f.Name)
	})
	return typed
}
