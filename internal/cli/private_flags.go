package cli

import (
	"cmp"
	"runtime"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
)

// The command "queuectl run --private" executes a list of jobs in a separate queue, with a service inside this process.
// This file contains its flags, and package private the implementation. The implementation starts the service without
// workers, so that no job starts yet. It then stores the jobs of all new lines in one batch, and sets the number of
// workers. Now the jobs start, and the program follows them until no more jobs will run.
//
// A run can be interrupted and repeated. The id of a job consists of three parts: the number of its line, a hash of the
// line and the flags, and the id that the line declares. For example, line 3 with the id "build" is stored as job
// 3-0123456789-build. When the run is repeated, these ids show which lines are already stored. A different hash for the
// same line number means that the line has changed, which is an error.

// PrivateFlags are the flags of "queuectl run" that are valid only with --private.
// See docs/decisions/0067.
type PrivateFlags struct {
	input.Source
	isPrivate     bool
	workersFlag   string // a number of workers, or "auto" for one per processor
	RetryDeadJobs bool
	AddNewLines   bool
	JobLogPath    string
}

func (p *PrivateFlags) addTo(f *pflag.FlagSet) {
	f.BoolVar(&p.isPrivate, "private", false, "run a list of jobs in the foreground, in a separate queue in --dir "+
		"(default: .queuectl)")
	f.StringVar(&p.workersFlag, "workers", "auto", "with --private: run `N` jobs at the same time; auto "+
		"means one per processor")
	p.Source.AddFlags(f)
	f.Var(input.NonEmptyValue(&p.JobLogPath), "joblog",
		"with --private: write one line per ended job to `FILE`, in the format of "+
			"GNU parallel; - is standard output")
	f.BoolVar(&p.AddNewLines, "add-new", false, "with --private: also run jobs that were added at the end of the list "+
		"of jobs since this command first ran")
	f.BoolVar(&p.RetryDeadJobs, "retry-dead", false, "with --private: retry the dead jobs of an earlier run")
}

// check returns an error if the flags and arguments cannot be combined. Otherwise it returns the number of workers.
// argCountBeforeDash is the number of arguments before --, or -1 without --.
func (p *PrivateFlags) check(f *pflag.FlagSet, args []string, argCountBeforeDash int) (workerCount int, err error) {
	workerCount = runtime.NumCPU()
	if p.workersFlag != "auto" {
		if workerCount, err = strconv.Atoi(p.workersFlag); err != nil || workerCount < 1 {
			return 0, fault.Usagef("--workers: %q is not a number of workers; use 1 or more, or auto", p.workersFlag)
		}
	}
	for _, name := range []string{"detach", "cancel-on-exit", "stdin", "socket"} {
		if f.Changed(name) {
			return 0, fault.Usagef("--%s: cannot be combined with --private; leave one of them out", name)
		}
	}
	if err := p.ParseArgs("run --private", f, args, argCountBeforeDash); err != nil {
		return 0, err
	}
	if !p.IsGiven() {
		return 0, fault.Usagef("--private: no jobs given; use --file FILE, --lines FILE, --arg-file FILE -- PROGRAM {}, or " +
			"-- PROGRAM {} ::: WORDS")
	}
	return workerCount, nil
}

// PrivateQueueDir returns the directory of a private run.
func (a *App) PrivateQueueDir() string { return cmp.Or(a.ServiceDir, ".queuectl") }
