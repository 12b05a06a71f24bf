package input

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/queue"
)

// InstantVar adds a flag for a time in the past, like --since.
func InstantVar(f *pflag.FlagSet, at *control.Time, name, doc string) {
	f.Func(name, doc, func(text string) (err error) {
		*at, err = SinceWhen(text)
		return err
	})
}

// SinceWhen parses the value of --since: a time, or a duration before now.
func SinceWhen(text string) (control.Time, error) {
	if text == "" {
		return 0, fault.ErrEmpty
	}
	now := time.Now()
	if s, err := when.ParseStep(text); err == nil {
		return control.Time(queue.MillisOf(s.FromNow(now, when.Backward))), nil
	}
	t, err := when.Parse(text, now, when.Backward)
	return control.Time(queue.MillisOf(t)), err
}

// NewFieldFlag returns the value of a flag that sets the field with the given name.
func NewFieldFlag(s *queue.Spec, name string) pflag.Value {
	list := queue.Fields()
	i := slices.IndexFunc(list, func(f queue.Field) bool { return f.Name == name })
	return &fieldFlag{spec: s, field: list[i]}
}

// nonEmpty is a flag value that must not be empty. An empty value usually comes from an unset variable
// in a script. Without this check, the flag would silently have no effect.
type nonEmpty struct{ text *string }

// NonEmpty returns the value of a flag whose text must not be empty.
func NonEmpty(text *string) pflag.Value { return nonEmpty{text} }

// String returns the text.
func (f nonEmpty) String() string {
	if f.text == nil {
		return ""
	}
	return *f.text
}

// Type returns the placeholder for the value in the help. The description of a flag can override it.
func (f nonEmpty) Type() string { return "NAME" }

// Set stores the text.
func (f nonEmpty) Set(text string) error {
	if text == "" {
		return fault.ErrEmpty
	}
	*f.text = text
	return nil
}

// onlyOnce is a nonEmpty that the user can set only once. If a second value were accepted, the first
// one would have no effect.
type onlyOnce struct{ nonEmpty }

// GivenOnce returns the value of a flag whose text must not be empty and can be given only once.
func GivenOnce(text *string) pflag.Value { return onlyOnce{nonEmpty{text}} }

// Set stores the text. It returns an error if the flag was already given with a different text.
func (s onlyOnce) Set(text string) error {
	if was := *s.text; was != "" && was != text {
		return fmt.Errorf("the flag is given twice, as %q and %q; give it once", was, text)
	}
	return s.nonEmpty.Set(text)
}

// DurationVar adds a flag with a duration. It passes the duration to the function take.
func DurationVar(f *pflag.FlagSet, name, doc string, take func(time.Duration)) {
	f.Func(name, doc, func(text string) error {
		d, err := when.ParseSpan(text)
		take(d)
		return err
	})
}

// CheckLists rejects flags whose value is an empty list, for example because a variable in a script is
// not set. Such a flag would silently have no effect.
func CheckLists(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "[]" {
			err = fault.Usage("--%s: %v", f.Name, fault.ErrEmpty)
		}
	})
	return err
}

// LabelsVar adds a flag for labels, like --label.
func LabelsVar(f *pflag.FlagSet, m *map[string]string, name, doc string) {
	f.StringToStringVar(m, name, nil, doc)
	f.Lookup(name).DefValue = "" // an empty DefValue makes the help show no default
}
