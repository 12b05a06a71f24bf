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

// PastTimeVar adds a flag for a time in the past, like --since.
func PastTimeVar(f *pflag.FlagSet, target *control.Time, name, usage string) {
	f.Func(name, usage, func(text string) (err error) {
		*target, err = ParseSinceTime(text)
		return err
	})
}

// FutureTimeVar adds a flag for a time in the future, like --until of the command that pauses a queue.
func FutureTimeVar(f *pflag.FlagSet, target *control.Time, name, usage string) {
	f.Func(name, usage, func(text string) error {
		at, err := parseFutureTime(text)
		*target = control.Time(at)
		return err
	})
}

// parseFutureTime parses a time, which is in the future if the text is incomplete.
func parseFutureTime(text string) (queue.UnixMillis, error) {
	t, err := when.ParseTime(text, time.Now(), when.Forward)
	if err != nil {
		return 0, err
	}
	return queue.UnixMillisOfParsedTime(t, text)
}

// ParseSinceTime parses the value of --since: a time, or a duration before now.
func ParseSinceTime(text string) (control.Time, error) {
	if text == "" {
		return 0, fault.ErrEmptyFlagValue
	}
	now := time.Now()
	step, err := when.ParseCalendarStep(text)
	var t time.Time
	if err == nil {
		t = step.FromNow(now, when.Backward)
	} else if t, err = when.ParseTime(text, now, when.Backward); err != nil {
		return 0, err
	}
	at, err := queue.UnixMillisOfParsedTime(t, text)
	return control.Time(at), err
}

// NewFieldFlag returns the value of a flag that sets the field fieldName of s.
func NewFieldFlag(s *queue.Spec, fieldName string) pflag.Value {
	list := queue.SpecFields()
	i := slices.IndexFunc(list, func(f queue.Field) bool { return f.Name == fieldName })
	return &fieldFlag{spec: s, field: list[i]}
}

// textValue is the value of a flag that must not be empty. An empty value usually comes from an unset variable in a
// script. Such a value is an error, because otherwise the flag would silently have no effect.
type textValue struct {
	target             *string
	rejectsSecondValue bool // reject a second, different value instead of ignoring the first one
}

// NonEmptyValue returns the value of a flag whose text must not be empty.
func NonEmptyValue(target *string) pflag.Value { return textValue{target: target} }

// OnceOnlyValue returns the value of a flag whose text must not be empty and can be given only once.
func OnceOnlyValue(target *string) pflag.Value {
	return textValue{target: target, rejectsSecondValue: true}
}

// String returns the text.
func (v textValue) String() string { return queue.ValueOr(v.target, "") }

// Type returns the placeholder for the value in the help. The description of a flag can override the placeholder.
func (v textValue) Type() string { return "NAME" }

// Set stores the text.
func (v textValue) Set(text string) error {
	switch previous := *v.target; {
	case v.rejectsSecondValue && previous != "" && previous != text:
		return fmt.Errorf("the flag is given twice, as %q and %q; give it once", previous, text)
	case text == "":
		return fault.ErrEmptyFlagValue
	}
	*v.target = text
	return nil
}

// DurationVar adds a flag for a duration.
func DurationVar(f *pflag.FlagSet, target *control.Duration, name, usage string) {
	f.Func(name, usage, func(text string) (err error) {
		*target, err = ParseDuration(text)
		return err
	})
}

// OptionalVar adds an optional flag. If the user sets the flag, *target points to its value. Otherwise *target
// stays nil.
func OptionalVar[T any](f *pflag.FlagSet, target **T, parse func(string) (T, error), name, shorthand, usage string) {
	f.FuncP(name, shorthand, usage, func(text string) error {
		value, err := parse(text)
		*target = &value
		return err
	})
}

// ParseDuration parses a duration like when.ParseDuration.
func ParseDuration(text string) (control.Duration, error) {
	d, err := when.ParseDuration(text)
	return control.Duration(d), err
}

// ParseInt parses an integer.
func ParseInt(text string) (int, error) {
	n, err := queue.ParseInteger(text)
	return int(n), err
}

// RejectEmptyListFlags returns an error if a flag has an empty list as its value, for example because a variable in a
// script is not set. Without the error, such a flag would have no effect, and the user would not notice this.
func RejectEmptyListFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "[]" {
			err = fault.Usagef("--%s: %v", f.Name, fault.ErrEmptyFlagValue)
		}
	})
	return err
}

// CompleteValues makes shells complete the value of a flag with one of these values.
func CompleteValues(cmd *cobra.Command, flag string, values ...string) {
	// This call fails only if the flag does not exist.
	cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// LabelsVar adds a flag for labels, like --label.
func LabelsVar(f *pflag.FlagSet, target *map[string]string, name, usage string) {
	f.StringToStringVar(target, name, nil, usage)
	f.Lookup(name).DefValue = "" // so that the help shows no default
}
