// Package input turns flags, arguments and files into specs of jobs, and completes them with the
// caller's environment.
//
// Start with AddSpecFlags, Source and CompleteAndCheckSpec.
package input

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// AddSpecFlags adds a flag for every field of a spec, except the fields in excludedFields. A flag has the name of its
// field with "-" instead of "_". A flag for a list or a map has the singular form of the field's name.
func AddSpecFlags(cmd *cobra.Command, s *queue.Spec, excludedFields ...string) {
	f := cmd.Flags()
	for _, field := range queue.SpecFields() {
		// The words after -- set argv, so argv has no flag.
		if field.Name == "argv" || slices.Contains(excludedFields, field.Name) {
			continue
		}
		for i, name := range FieldFlagNames(field) {
			short := ""
			switch name {
			case "command":
				short = "c"
			case "queue":
				short = "Q"
			}
			usage := field.Usage()
			if brief := shorterFlagName(field.Name); i == 0 && brief != "" {
				usage = "same as --" + brief
			}
			flag := f.VarPF(&fieldFlag{spec: s, field: field}, name, short, usage)
			if field.Kind == queue.KindBool {
				flag.NoOptDefVal = "true"
			}
			if theme := groupOfField(&field); theme != "" {
				f.SetAnnotation(name, FlagGroupAnnotation, []string{theme})
			}
			AnnotateFlagWithField(f, name, field.Name)
			flag.Hidden = i > 0 && name != shorterFlagName(field.Name)
			if c := queue.FieldConstraint(field.Name); c != nil && c.Enum != nil {
				CompleteValues(cmd, name, c.Enum...)
			}
		}
	}
	addDependencyFlags(f, s)
	if !slices.Contains(excludedFields, "run_at") {
		allowed := f.Bool("allow-past", false, "accept past times for --at and --expires-at")
		f.SetAnnotation("allow-past", FlagGroupAnnotation, []string{groupOfField(&queue.Field{Name: "run_at"})})
		cmd.PreRunE = func(*cobra.Command, []string) error {
			if *allowed {
				return nil
			}
			return rejectPastTimes(s, time.Now())
		}
	}
}

// pastTimeGrace is how far in the past the time of --at or --expires-at may be. Times shortly in the past are accepted,
// because a program needs a moment to start, and because clocks differ.
const pastTimeGrace = time.Minute

// rejectPastTimes returns an error if the time of --at or --expires-at has passed, because such a time is most likely a
// mistake. at(1) rejects such times too. Only the client checks the times. The service accepts past times, so that a
// client can repeat a request.
func rejectPastTimes(s *queue.Spec, now time.Time) error {
	flag, at := "--at", s.RunAt
	if !isPast(at, now) {
		flag, at = "--expires-at", s.ExpiresAt
	}
	if !isPast(at, now) {
		return nil
	}
	text, _ := present.FullTimeText(at.Time(), now)
	return fault.Usagef("%s: the time is %s; give a later time, or add --allow-past", flag, text)
}

// isPast reports whether a time is set and lies more than pastTimeGrace in the past.
func isPast(t *queue.UnixMillis, now time.Time) bool {
	return t != nil && *t != 0 && now.Sub(t.Time()) > pastTimeGrace
}

// FieldFlagNames returns the names of the flags that set a field. The help shows only the first of these flags, and the
// flag that shorterFlagName returns.
func FieldFlagNames(f queue.Field) []string {
	name := strings.ReplaceAll(f.Name, "_", "-")
	names := []string{name}
	if singular := strings.TrimSuffix(name, "s"); (f.Kind == queue.KindMap || f.Kind == queue.KindExitCodes) &&
		singular != name {
		names = []string{singular, name}
	}
	if f.Alias != "" {
		names = append(names, strings.ReplaceAll(f.Alias, "_", "-"))
	}
	if short := shorterFlagName(f.Name); short != "" {
		names = append(names, short)
	}
	return names
}

// shorterFlagName returns a shorter second name of the flag for a field, or "" if the flag has none, as most flags.
func shorterFlagName(field string) string {
	switch field {
	case "run_at":
		return "at"
	case "delay":
		return "in"
	}
	return ""
}

// fieldFlag sets one field of a spec.
type fieldFlag struct {
	spec  *queue.Spec
	field queue.Field
}

// String returns the empty default value.
func (f *fieldFlag) String() string { return "" }

// flagValuePlaceholders lists the placeholder that the help shows for the value of a flag. It contains the fields whose
// values are texts or lists, in the form FIELD=PLACEHOLDER. It is one string, because a switch statement would make
// queuectl larger.
const flagValuePlaceholders = " command=COMMAND shell=COMMAND on_completed=COMMAND on_failed=COMMAND " +
	"on_dead=COMMAND on_ended=COMMAND" +
	" queue=QUEUE lock=KEY unique=KEY rate_limit=KEY=N/PERIOD depends_on=ID on=NODE user=USER cwd=DIR " +
	"stdin=STRING stdin_file=FILE" +
	" umask=MASK backoff_strategy=STRATEGY on_lost=ACTION on_conflict=ACTION on_dependency_failure=ACTION " +
	"resources=NAME=N env_secret=NAME=FILE "

// Type returns the placeholder for the value in the help.
func (f *fieldFlag) Type() string {
	if _, rest, found := strings.Cut(flagValuePlaceholders, " "+f.field.Name+"="); found {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return cmp.Or(map[queue.FieldKind]string{
		queue.KindInteger: "N", queue.KindNumber: "N", queue.KindDuration: "DURATION", queue.KindTime: "TIME",
		queue.KindSize: "SIZE", queue.KindMap: "NAME=VALUE", queue.KindExitCodes: "CODES", queue.KindBool: "bool",
	}[f.field.Kind], "NAME")
}

// Set parses the value. It reads times in the caller's zone and accepts durations in words.
func (f *fieldFlag) Set(text string) error {
	switch f.field.Kind {
	case queue.KindDuration:
		d, err := when.ParseDuration(text)
		if err != nil && f.field.Name == "delay" {
			if _, wrong := when.ParseTime(text, time.Now(), when.Forward); wrong == nil {
				return fmt.Errorf("%q is a time, not a duration; use --at for a time", queue.ClipForMessage(text))
			}
		}
		if err != nil {
			return err
		}
		text = queue.FormatDuration(d)
	case queue.KindTime:
		at, err := parseFutureTime(text)
		if err != nil {
			return err
		}
		text = at.String()
	}
	return f.spec.SetFieldText(f.field.Name, text)
}

// CompleteAndCheckSpec completes a spec with the caller's environment and validates it as the service does.
func CompleteAndCheckSpec(s *queue.Spec, runInHomeDir bool) error {
	if err := AddCallerEnvironment(s, runInHomeDir); err != nil {
		return err
	}
	return CheckSpec(s)
}

// CheckSpec validates a spec as the service does.
func CheckSpec(s *queue.Spec) error {
	_, err := queue.ResolveSpec(s, queue.JobDefaults{Shell: "sh", OnLost: queue.OnLostRetry})
	return err
}

// maxTracestateBytes is the length in bytes up to which every program must be able to forward a tracestate (W3C Trace
// Context, level 1, section 3.3.1.5).
const maxTracestateBytes = 512

// isTraceparent reports whether a text is a valid traceparent (W3C Trace Context, section 3.2).
func isTraceparent(text string) bool {
	// The text has four parts of 2, 32, 16 and 2 digits, separated by dashes.
	return len(text) == 55 && text[2] == '-' && text[35] == '-' && text[52] == '-' && strings.Count(text, "-") == 3 &&
		strings.Trim(text, "0123456789abcdef-") == ""
}

// MakePathsAbsolute makes the paths in a spec absolute, relative to the caller's working directory.
func MakePathsAbsolute(s *queue.Spec) error {
	for field, path := range map[string]*string{"cwd": s.Cwd, "stdin_file": s.StdinFile} {
		if path == nil || *path == "" || filepath.IsAbs(*path) || os.IsPathSeparator((*path)[0]) {
			continue
		}
		whole, err := filepath.Abs(*path)
		if err != nil {
			hint := "use an absolute path"
			if *path == "." { // "." is the default of cwd
				hint = "change to another directory, or let the job start in your home directory with --no-cwd"
			}
			return queue.InvalidFieldError(field, "the current directory no longer exists (%v); %s", err, hint)
		}
		*path = whole
	}
	return nil
}

// AddCallerEnvironment adds the caller's environment to a spec: the working directory, the umask, the variables
// that decide how programs print text, and the variables in env_pass.
func AddCallerEnvironment(s *queue.Spec, runInHomeDir bool) error {
	if s.Cwd == nil && !runInHomeDir {
		currentDir := "."
		s.Cwd = &currentDir
	}
	if err := MakePathsAbsolute(s); err != nil {
		return err
	}
	if s.Umask == nil {
		if mask, ok := files.CallerUmask(); ok {
			s.Umask = &mask
		}
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	all := slices.Contains(s.EnvPass, "*")
	in := func(names []string, name string) int {
		return slices.IndexFunc(names, func(n string) bool { return queue.SameVariableName(n, name) })
	}
	given := slices.Collect(maps.Keys(s.Env))
	inTrace := isTraceparent(os.Getenv(queue.TraceparentVariable)) && in(given, queue.TraceparentVariable) < 0 &&
		len(os.Getenv(queue.TracestateVariable)) <= maxTracestateBytes
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		if in(given, name) >= 0 || strings.HasPrefix(name, "QUEUECTL_") || name == "" {
			continue
		}
		if i := in(inheritedEnvVariables, name); i >= 0 {
			s.Env[inheritedEnvVariables[i]] = value
			// "queuectl run" connects the user's terminal to the job's terminal, so the job needs to know the type of the user's
			// terminal (TERM).
		} else if name == "TERM" && s.TTY != nil && *s.TTY ||
			inTrace && (name == queue.TraceparentVariable || name == queue.TracestateVariable) ||
			all || strings.HasPrefix(name, "LC_") || in(s.EnvPass, name) >= 0 {
			s.Env[name] = value
		}
	}
	s.EnvPass = nil
	return s.CheckUTF8()
}

// addDependencyFlags adds the flags --after and --after-any, which are short forms of --depends-on.
func addDependencyFlags(f *pflag.FlagSet, s *queue.Spec) {
	addFlag := func(name, conditionSuffix, doc string) {
		f.Func(name, doc, func(text string) error {
			for id := range strings.SplitSeq(text, ",") {
				if id == "" {
					return errors.New("a job id is missing; write the list as ID,ID")
				}
				if !queue.ValidID(id) && (conditionSuffix != "" || !strings.Contains(id, ":")) {
					return fmt.Errorf("%q is not a job id; list the jobs with: queuectl list", queue.ClipForMessage(id))
				}
				if err := s.SetFieldText("depends_on", id+conditionSuffix); err != nil {
					return err
				}
			}
			return nil
		})
		f.SetAnnotation(name, FlagGroupAnnotation, []string{QueuesAndLocksGroup})
		AnnotateFlagWithField(f, name, "depends_on")
	}
	addFlag("after", "", "start when all jobs in the list `ID,ID` have succeeded")
	addFlag("after-any", ":ended", "start when all jobs in the list `ID,ID` have ended in any way")
}
