package input

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// Source describes where several jobs come from: a file of jobs, of shell commands or of arguments, or the
// words after :::.
type Source struct {
	JobsFile, CommandsFile, argumentsFile string   // the flags --file, --lines and --arg-file
	NullSeparated                         bool     // the flag --null
	CommandTemplate                       []string // program and its arguments, with replacement strings like {}
	// templateWordPieces holds the words of CommandTemplate, split into pieces. It is nil until jobArgv is called.
	templateWordPieces [][]wordPiece
	argLists           [][]string // the words after each ":::"
	currentJobNumber   int        // number of the current job, from 1
}

func (src *Source) AddFlags(f *pflag.FlagSet) {
	f.Var(NonEmptyValue(&src.JobsFile), "file", "read jobs from `FILE` (JSON or TOML); - is stdin")
	f.Var(NonEmptyValue(&src.CommandsFile), "lines", "read one shell command per line of `FILE`; - is stdin")
	f.Var(NonEmptyValue(&src.argumentsFile), "arg-file",
		"for each line of `FILE`, run the program after \"--\"; the line replaces "+
			"{} or is added at the end; - is stdin")
	f.BoolVar(&src.NullSeparated, "null", false,
		"with --arg-file: a NUL byte ends each argument, as in the output of find -print0")
}

// singleJobFlags are the flags that cannot be combined with a source of several jobs.
var singleJobFlags = []string{"id", "command"}

// IsTOML reports whether the jobs come from a TOML file.
func (src *Source) IsTOML() bool { return filepath.Ext(src.JobsFile) == ".toml" }

// IsGiven reports whether the command line names a source of several jobs.
func (src *Source) IsGiven() bool { return len(src.givenSources()) > 0 }

// givenSource is a source of jobs on the command line: a flag and the file that the flag names, or ::: without a file.
type givenSource struct{ flag, file string }

// givenSources returns the sources that the command line names. ParseArgs rejects more than one source.
func (src *Source) givenSources() (sources []givenSource) {
	for _, s := range []givenSource{{"--file", src.JobsFile}, {"--lines", src.CommandsFile},
		{"--arg-file", src.argumentsFile}} {
		if s.file != "" {
			sources = append(sources, s)
		}
	}
	if len(src.argLists) > 0 {
		sources = append(sources, givenSource{flag: ":::"})
	}
	return sources
}

// ParseArgs parses the arguments of the command and checks that the arguments can be combined with the flags. The job's
// program follows --, and its arguments follow each :::. argCountBeforeDash is the number of arguments before --, or -1
// without --.
func (src *Source) ParseArgs(verb string, f *pflag.FlagSet, args []string, argCountBeforeDash int) error {
	if err := rejectGNUParallelSources(verb, args, argCountBeforeDash); err != nil {
		return err
	}
	if i := slices.Index(args, ":::"); i >= 0 && argCountBeforeDash == 0 {
		for _, word := range args[i:] {
			if word == ":::" {
				src.argLists = append(src.argLists, nil)
				continue
			}
			last := &src.argLists[len(src.argLists)-1]
			*last = append(*last, word)
		}
		args = args[:i]
	}
	sources := src.givenSources()
	if len(sources) == 0 {
		if src.NullSeparated {
			return fault.Usagef("--null: works only with --arg-file; add --arg-file FILE")
		}
		return nil
	}
	perArgument := src.argumentsFile != "" || len(src.argLists) > 0
	switch {
	case len(sources) > 1:
		return fault.Usagef("%s: cannot be combined with %s; use one of them", sources[0].flag, sources[1].flag)
	case src.NullSeparated && src.argumentsFile == "":
		return fault.Usagef("--null: works only with --arg-file; add --arg-file FILE")
	case perArgument && (argCountBeforeDash != 0 || len(args) == 0) && src.argumentsFile != "":
		return fault.Usagef("--arg-file: no program given; write it after --, with {} for the argument: queuectl %s "+
			"--arg-file FILE -- gzip -k {}", verb)
	case perArgument && (argCountBeforeDash != 0 || len(args) == 0):
		return fault.Usagef("no program between -- and :::; write it there, with {} for the argument: queuectl %s -- "+
			"gzip -k {} ::: *.log", verb)
	case !perArgument && len(args) > 0:
		return fault.Usagef("%s: cannot be combined with a command; use one of them", sources[0].flag)
	}
	for _, name := range singleJobFlags {
		if f.Changed(name) {
			return fault.Usagef("--%s: cannot be combined with %s, which creates several jobs; leave out --%[1]s", name,
				sources[0].flag)
		}
	}
	if src.CommandTemplate = args; perArgument {
		if err := src.checkPlaceholders(); err != nil {
			return err
		}
	}
	if file := sources[0].file; file != "" && file != "-" {
		return files.CheckIsFile(sources[0].flag, file)
	}
	return nil
}

// rejectGNUParallelSources returns an error if the arguments contain GNU parallel's notation for another source of
// jobs, such as ::::. Without the error, queuectl would pass this notation to the program as an argument.
func rejectGNUParallelSources(verb string, args []string, argCountBeforeDash int) error {
	switch has := func(word string) bool { return slices.Contains(args, word) }; {
	case has("::::"), has("::::+"):
		return fault.Usagef(":::: is not supported; use --arg-file: queuectl %s --arg-file FILE -- PROGRAM {}", verb)
	case has(":::+"):
		return fault.Usagef(":::+ is not supported; write one command per line and use --lines, or write the jobs as " +
			"JSON and use --file")
	case has(":::") && argCountBeforeDash < 0:
		return fault.Usagef("::: works only with a program after --, not with a shell command; write: queuectl %s "+
			"-- PROGRAM {} ::: …", verb)
	}
	return nil
}

// OpenFile opens the file with the jobs. The name - means stdin. It returns nil if the jobs do not come from a
// file.
func (src *Source) OpenFile(stdin *os.File) (*os.File, error) {
	switch from := src.givenSources()[0]; from.file {
	case "":
		return nil, nil
	case "-":
		return stdin, nil
	default:
		return files.Open(from.flag, from.file)
	}
}

// EachJob calls handleJob(raw, lineNumber) for every job, with the job's text and line number. The text is JSON, a
// shell command, or arguments separated by NUL. During each call, src.jobNumber is the number of the job.
func (src *Source) EachJob(in io.Reader, handleJob func(raw []byte, lineNumber int) error) error {
	src.currentJobNumber = 0
	countAndVisit := func(raw []byte, lineNumber int) error {
		src.currentJobNumber++
		return handleJob(raw, lineNumber)
	}
	switch {
	case src.JobsFile != "":
		return eachJSONJob(in, countAndVisit)
	case src.NullSeparated: // --null is valid only with --arg-file
		return eachNonEmptyLine(in, 0, countAndVisit)
	case src.CommandsFile+src.argumentsFile != "":
		return eachNonEmptyLine(in, '\n', countAndVisit)
	}
	lineNumber := 0
	var visitCombinations func(chosen []string, rest [][]string) error
	visitCombinations = func(chosen []string, rest [][]string) error {
		if len(rest) == 0 {
			lineNumber++
			return countAndVisit([]byte(strings.Join(chosen, "\x00")), lineNumber)
		}
		for _, word := range rest[0] {
			if err := visitCombinations(append(chosen[:len(chosen):len(chosen)], word), rest[1:]); err != nil {
				return err
			}
		}
		return nil
	}
	return visitCombinations(nil, src.argLists)
}

// JobSpec returns the job for a text from EachJob. commonSpec contains the fields that flags set for all jobs.
func (src *Source) JobSpec(commonSpec *queue.Spec, raw []byte) (*queue.Spec, error) {
	var s queue.Spec
	s.Override(commonSpec)
	switch {
	case src.JobsFile != "":
		if err := queue.CheckJSON(raw); err != nil {
			return nil, err
		}
		var jobSpec queue.Spec
		if err := jobSpec.DecodeJSON(raw, nil); err != nil {
			return nil, err
		}
		s.Override(&jobSpec)
	case src.CommandsFile != "":
		s.Command = new(string(raw))
	case src.argumentsFile != "" && !src.NullSeparated && strings.Contains(string(raw), "\x00"):
		return nil,
			queue.InvalidFieldError("argv", "the line contains a NUL byte; if NUL bytes separate the arguments, add --null")
	default:
		s.Argv = src.jobArgv(strings.Split(string(raw), "\x00"), src.currentJobNumber)
	}
	return &s, s.CheckUTF8()
}

// jobArgv returns the program for the job with the given number, in which the arguments replace the replacement
// strings. If the program contains no replacement string, jobArgv appends the arguments.
func (src *Source) jobArgv(args []string, jobNumber int) []string {
	if src.templateWordPieces == nil {
		for _, word := range src.CommandTemplate {
			src.templateWordPieces = append(src.templateWordPieces, SplitAtPlaceholders(word))
		}
	}
	argv, found := make([]string, len(src.CommandTemplate), len(src.CommandTemplate)+len(args)), false
	for i, word := range src.templateWordPieces {
		argv[i] = replacePlaceholders(word, args, jobNumber)
		found = found || slices.ContainsFunc(word, func(p wordPiece) bool {
			return p.placeholderText != "" && p.argNumber <= len(args)
		})
	}
	if !found {
		argv = append(argv, args...)
	}
	return argv
}

// checkPlaceholders rejects replacement strings that queuectl would not replace: {3} if there are fewer than
// three arguments, and strings of GNU parallel that queuectl does not support, like {%} and {0}.
//
// It accepts a number in braces after ] or ), as in [0-9]{4}, because such a number is a repetition in a regular
// expression.
func (src *Source) checkPlaceholders() error {
	given := max(1, len(src.argLists))
	for _, word := range src.CommandTemplate {
		before := ""
		for _, p := range SplitAtPlaceholders(word) {
			if p.argNumber > given && !(allowsRegexpRepetition(before) && len(p.placeholderText) == len("{1}")) {
				return fault.Usagef("%s: no argument has this number; each job has %s", p.placeholderText,
					present.Plural(given, "argument"))
			}
			before = p.text
			if text, found := findUnsupportedPlaceholder(p.text); found {
				return fault.Usagef("%s: unknown placeholder; use {}, {.}, {/}, {//}, {/.} or {#}, or select an argument by "+
					"number, as in {2} or {2.}", queue.ClipForMessage(text))
			}
		}
	}
	return nil
}

// HasEmptyArgumentList reports whether no words follow one of the ":::". In that case the source contains no jobs.
func (src *Source) HasEmptyArgumentList() bool {
	return slices.ContainsFunc(src.argLists, func(w []string) bool { return len(w) == 0 })
}

// PrintNoJobs prints that the source of the jobs is empty.
func (src *Source) PrintNoJobs(o *term.Output) {
	from := src.givenSources()[0]
	if from.file == "-" {
		from = givenSource{flag: "standard input"}
	}
	o.PrintMessage("%s contains no jobs", strings.TrimSpace(from.flag+" "+o.EscapeForFile(o.Stderr, from.file)))
}
